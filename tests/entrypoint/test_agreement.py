"""What only all nodes together can know of NCCL: real members of a roll call on loopback."""

import asyncio
from dataclasses import replace

import pytest
from meetings import Node, codes, ends, primary, seats, texts

from entrypoint.failure import Ended
from entrypoint.member import Start
from entrypoint.restarts import Outcome
from entrypoint.tally import Report

IB = {"hcas": ["mlx5_0"], "link_layer": "InfiniBand", "reason": "1 x InfiniBand at 400 Gbit/s"}
NONE = {"hcas": [], "link_layer": None, "reason": "mlx5_0 is listed but cannot be opened here"}


def meet(tmp_path, *changes, reports=(), hosts=("h0", "h1", "h2")):
    """Nodes that state these things: the events of each, their codes and last words."""

    async def trial():
        all_seats = [replace(one, host=hosts[one.rank]) for one in seats(tmp_path, len(changes))]
        async with primary(all_seats[0]):
            nodes = [Node(seat, *reports, **stated) for seat, stated in zip(all_seats, changes, strict=True)]
            results = await ends(nodes, seconds=60)
        return nodes, codes(results), texts(results)

    return asyncio.run(trial())


def test_a_node_without_rdma_among_others_with_it_stops_all_by_name(tmp_path):
    _, all_codes, words = meet(tmp_path, {"rdma": IB}, {"rdma": NONE}, {"rdma": IB})
    assert all_codes == [68] * 3
    assert all("node 1: mlx5_0 is listed but cannot be opened here" in text for text in words)
    assert all("NCCL_IB_DISABLE=1 on all nodes" in text for text in words)


@pytest.mark.parametrize("rdma", [IB, NONE, None, {}, {"hcas": "mlx5_0"}, 3])
def test_nodes_that_are_alike_start_whatever_they_have(rdma, tmp_path):
    nodes, all_codes, _ = meet(tmp_path, {"rdma": rdma}, {"rdma": rdma})
    assert all_codes == [0, 0]
    assert [node.heard_of(Start)[0].host_id for node in nodes] == [None, None]


def test_nodes_that_nccl_would_take_for_one_machine_are_told_ids_of_their_own(tmp_path):
    same = {"rdma": IB, "boot_id": "b"}
    nodes, _, _ = meet(tmp_path, same, same, same, hosts=("pod", "other", "pod"))
    ids = [node.heard_of(Start)[0].host_id for node in nodes]
    assert [one and one.value for one in ids] == ["pod-node0", None, "pod-node2"]


def test_a_given_id_that_several_nodes_share_is_replaced(tmp_path):
    nodes, _, _ = meet(tmp_path, *[{"rdma": IB, "host_id": "1"}] * 2)
    ids = [node.heard_of(Start)[0].host_id for node in nodes]
    assert [(one.name, one.value) for one in ids] == [("NCCL_HOSTID", "h0-node0"), ("NCCL_HOSTID", "h1-node1")]


HUNG = Report(
    Outcome(134, "rank 0 hung", first_collective=True),
    (Ended(0, 0, 0, 134, lines=("Watchdog caught collective operation timeout",), note="all ranks were in number 1"),),
)
CAME_THROUGH = Report(Outcome(137, "end of the trial", stepped=True, by_itself=False))


def test_a_trial_is_told_to_all_nodes_and_its_suspect_ends_the_run(tmp_path):
    nodes, all_codes, words = meet(tmp_path, {}, {}, reports=(HUNG, HUNG, CAME_THROUGH))
    for node in nodes:
        switches = [start.trial.switch if start.trial else None for start in node.heard_of(Start)]
        assert switches == [None, "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]
    assert all_codes == [69, 69]
    assert all("suspect: shared memory between processes" in text for text in words)
    assert any("all ranks were in number 1" in line for line in nodes[1].lines)
