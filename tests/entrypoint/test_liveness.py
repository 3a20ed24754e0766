import pytest

from entrypoint.liveness import Liveness


def watched(steps):
    """A Liveness that saw the steps at these times, and its clock."""
    now = [0.0]
    liveness = Liveness(clock=lambda: now[0])
    for number, moment in enumerate(steps, start=1):
        now[0] = moment
        liveness.see(number, moment)
    return liveness, now


@pytest.mark.parametrize(
    ("steps", "bound"),
    [((), 120), ((1,), 120), ((1, 2, 3), 120), ((0, 30, 60, 90), 300), ((0, 1, 2, 3, 500, 501), 120)],
)
def test_the_bound_is_ten_median_steps_and_at_least_two_minutes(steps, bound):
    liveness, now = watched(steps)
    assert liveness.bound == bound
    now[0] = (steps[-1] if steps else 0) + bound
    assert liveness.stuck_for() is None
    now[0] += 1
    assert liveness.stuck_for() == (bound + 1 if steps else None)


def test_without_a_step_file_nothing_is_judged():
    liveness, now = watched(())
    liveness.see(None, None)
    now[0] = 1e6
    assert liveness.stuck_for() is None
    assert not liveness.stepped


def test_the_same_step_written_again_is_life_too():
    liveness, now = watched((1, 2))
    now[0] = 121
    liveness.see(2, 121.0)
    now[0] = 240
    assert liveness.stuck_for() is None


def test_several_steps_between_two_looks_are_shared_out():
    liveness, now = watched((0,))
    now[0] = 200
    liveness.see(11, 200.0)
    assert liveness.bound == 200


def test_a_checkpoint_that_is_being_written_is_life():
    liveness, now = watched((1, 2))
    now[0] = 200
    liveness.alive()
    assert liveness.stuck_for() is None
