"""Variables of clouds, launched: the processes that run are those that the plan names, and they meet."""

import re
import socket

import pytest
import runs

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SUM = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
left = [name for name in os.environ if name.startswith("PET_")]
print("sum", int(one), "at", os.environ["MASTER_ADDR"], "left", left, flush=True)
dist.barrier()
os._exit(0)
"""
STRAY = {"PET_NNODES": "3:3", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ENDPOINT": "elsewhere:1"}


@pytest.mark.parametrize(
    ("variables", "world", "address"),
    [
        ({"MASTER_ADDR": "::1", "NUM_NODES": "1", "NUM_TRAINERS": "2"}, 2, "::1"),
        ({"MASTER_ADDR": "[::1]", "NUM_NODES": "1", "NUM_TRAINERS": "2"}, 2, "::1"),  # torch waits for such a name
        ({"NUM_NODES": "1", "NUM_TRAINERS": "1", **STRAY}, 1, "127.0.0.1"),  # torchrun would start two
    ],
    ids=["env-11 bare", "env-11 brackets", "env-15"],
)
def test_one_node_runs_the_world_that_was_told(variables, world, address, tmp_path):
    code, output = runs.train(tmp_path, runs.write_script(tmp_path, SUM), **variables)
    assert code == 0, output
    assert re.findall(r"sum (\d+) at (\S+) left (.*)", output) == [(str(world), address, "[]")] * world
    plan = runs.read(tmp_path / "runs" / "own" / "plan.json")
    assert plan["cluster"]["world_size"] == world


def test_addresses_with_the_length_of_their_network_are_addresses(tmp_path):
    """env-03: torch would try to resolve such a name until its time is over, on rank 0 too."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    primary = {"PRIMARY_ADDR": "127.0.0.1/24", "MASTER_ADDR": "127.0.0.1/24", "PRIMARY_PORT": port, "MASTER_PORT": port}
    cluster = {"NUM_NODES": "2", "NUM_TRAINERS": "1", "WORLD_SIZE": "2", "TRAIN_LOCAL_CLUSTER": "1", "TRAIN_WAIT": "60"}
    script = runs.write_script(tmp_path, SUM)
    nodes = [
        runs.start(tmp_path, script, **primary, **cluster, NODE_RANK=str(n), NODE_ADDR=f"127.0.0.{n + 1}/24")
        for n in range(2)
    ]
    ended = [runs.finish(node) for node in nodes]
    assert [code for code, _ in ended] == [0, 0], ended
    assert all("sum 2 at 127.0.0.1 left []" in output for _, output in ended)
