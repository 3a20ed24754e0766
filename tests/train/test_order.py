import numpy as np
import pytest
from order import samples_of_step, shuffled


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000, 65_537])
def test_an_epoch_sees_every_sample_once(count):
    order = shuffled(np.arange(count), count, seed=0, epoch=0)
    assert sorted(order.tolist()) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [shuffled(np.arange(500), 500, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize(("global_batch", "count"), [(4, 64), (7, 10), (16, 5)])
def test_steps_go_through_epochs_without_a_gap_or_a_repeat(global_batch, count):
    steps = 3 * count // global_batch + 1
    seen = np.concatenate([samples_of_step(0, step, global_batch, count) for step in range(steps)])
    for epoch in range(3):
        assert sorted(seen[epoch * count : (epoch + 1) * count].tolist()) == list(range(count))


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_ranks_share_out_the_same_samples_whatever_their_number(world_size):
    together = samples_of_step(3, 17, 6, 100)
    shares = [together[rank::world_size] for rank in range(world_size)]
    assert sorted(np.concatenate(shares).tolist()) == sorted(together.tolist())


def test_the_order_is_the_one_that_earlier_releases_drew():
    # A resume after an update must see what the run would have seen: these numbers never change.
    assert samples_of_step(0, 0, 8, 1000).tolist() == [25, 551, 340, 79, 768, 109, 427, 600]
    assert samples_of_step(1, 999, 4, 1000).tolist() == [329, 78, 24, 147]


def test_neighbours_are_spread_out():
    order = shuffled(np.arange(10_000), 10_000, seed=0, epoch=0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.05


def test_a_position_costs_no_table_of_the_corpus():
    assert 0 <= samples_of_step(0, 10**9, 4, 10**12)[0] < 10**12
