from dataclasses import replace

import pytest

from entrypoint.cluster import make_cluster
from entrypoint.environment import Environment
from entrypoint.errors import SettingError

ALONE = Environment("none", primary_address="127.0.0.1")
PLAINEST = Environment(
    "generic", nodes=None, node_rank=1, world_size=16, primary_address="10.0.0.9", primary_port=29500
)


@pytest.mark.parametrize(
    ("world_size", "gpus", "nodes", "processes"), [(16, 8, 2, 8), (2, 0, 2, 1), (8, 4, 2, 4), (32, 8, 4, 8)]
)
def test_of_the_plainest_contract_nodes_are_world_size_by_visible_gpus(world_size, gpus, nodes, processes):
    cluster = make_cluster(replace(PLAINEST, world_size=world_size), gpus)
    assert (cluster.nodes, cluster.processes_per_node, cluster.world_size) == (nodes, processes, world_size)


def test_a_world_size_that_the_gpus_do_not_divide_is_refused_with_both_numbers():
    with pytest.raises(SettingError, match=r"WORLD_SIZE=12.*\b8\b"):
        make_cluster(replace(PLAINEST, world_size=12), 8)


def test_a_rank_beyond_the_nodes_that_follow_is_refused():
    with pytest.raises(SettingError, match=r"NODE_RANK=2 is outside 0\.\.1"):
        make_cluster(replace(PLAINEST, node_rank=2), 8)


@pytest.mark.parametrize(("gpus", "processes"), [(0, 2), (1, 1), (8, 8)])
def test_one_node_runs_a_process_a_gpu_or_two_on_the_cpu(gpus, processes):
    assert make_cluster(ALONE, gpus).processes_per_node == processes


def test_more_processes_than_visible_gpus_are_refused_with_both_numbers():
    told = replace(ALONE, processes_per_node=8, sources={"processes_per_node": "NUM_TRAINERS"})
    with pytest.raises(SettingError, match=r"8 processes per node \(NUM_TRAINERS\).*2 visible GPUs"):
        make_cluster(told, 2)
    assert make_cluster(told, 0).processes_per_node == 8  # on CPU any number may run


def test_the_world_is_what_was_told_where_more_gpus_are_seen():
    cluster = make_cluster(replace(ALONE, processes_per_node=2), 8)
    assert (cluster.processes_per_node, cluster.world_size) == (2, 2)


def test_one_node_takes_the_next_port_where_somebody_listens_and_several_do_not():
    assert make_cluster(ALONE, 0, (29500, 29501)).primary_port == 29502
    several = replace(ALONE, nodes=2, primary_address="10.0.0.9")
    assert make_cluster(several, 0, (29500,)).primary_port == 29500
    assert make_cluster(replace(several, primary_port=23456), 0).primary_port == 23456


def test_processes_that_somebody_started_agree_on_a_port_without_looking():
    process = replace(ALONE, processes_per_node=2, world_size=2, rank=1, local_rank=1)
    assert make_cluster(process, 0, (29500,)).primary_port == 29500


@pytest.mark.parametrize(("local_rank", "gpus", "at_least"), [(0, 0, 1), (3, 0, 4), (3, 8, 8)])
def test_a_process_that_is_not_told_its_neighbours_is_not_alone_for_certain(local_rank, gpus, at_least):
    process = replace(PLAINEST, node_rank=None, rank=9, local_rank=local_rank)
    assert make_cluster(process, gpus).processes_per_node == at_least


def test_the_source_of_each_number_is_kept():
    cluster = make_cluster(replace(PLAINEST, sources={"node_rank": "NODE_RANK"}), 8)
    assert cluster.sources == {
        "node_rank": "NODE_RANK",
        "processes_per_node": "visible GPUs",
        "nodes": "WORLD_SIZE ÷ processes per node",
    }
