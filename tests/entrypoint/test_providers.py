"""Every captured environment of providers.json is read as documented, or refused with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from entrypoint.environment import Environment, endpoint, read_environment
from entrypoint.errors import SettingError
from entrypoint.providers import ROWS

FIXTURES = json.loads((Path(__file__).parent / "providers.json").read_text(encoding="utf-8"))
UNDERSTOOD = [fixture for fixture in FIXTURES if fixture["expected"] is not None]
REFUSED = [fixture for fixture in FIXTURES if fixture["expected"] is None]

QUOTED = {  # what the line must show: the variables in conflict with their values
    "runpod-cluster/user-overrides-one-alias": ("PRIMARY_ADDR=10.65.0.2", "MASTER_ADDR=10.65.0.9"),
    "kubernetes-jobset/pytorch-example": ("RANK=2", "number of nodes"),
    "slurm/uneven-tasks": ("SLURM_TASKS_PER_NODE=2(x3),1", "2,2,2,1"),
    "slurm/sbatch-shell-without-srun": ("SLURM_NNODES=4", "SLURM_STEP_ID"),
    "openmpi/no-master": ("OMPI_COMM_WORLD_SIZE=16", "MASTER_ADDR"),
    "vertex-ai/reduction-server": ("CLUSTER_SPEC", "workerpool2"),
    "dstack/node-groups-heterogeneous": ("DSTACK_GPUS_NUM=16", "DSTACK_NODES_NUM=3", "DSTACK_GPUS_PER_NODE=8"),
    "torchx/docker-or-kubernetes": ("TORCHX_RANK0_HOST=job-trainer-0", "number of nodes"),
    "negative/no-master": ("NUM_NODES=2", "MASTER_ADDR"),
    "negative/localhost-master": ("MASTER_ADDR=localhost", "NUM_NODES=2"),
    "negative/rank-out-of-range": ("NODE_RANK=2", "0..1", "NUM_NODES=2"),
    "negative/world-size-alone": ("WORLD_SIZE=16", "rank"),
}


def read(fixture: dict[str, Any], root: Path) -> Environment:
    for name, text in fixture.get("files", {}).items():
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    return read_environment(fixture["env"], root)


def as_told(environment: Environment) -> dict[str, Any]:
    names = ("nodes", "min_nodes", "node_rank", "processes_per_node", "world_size", "rank", "local_rank")
    address, port = environment.primary_address, environment.primary_port
    return {
        **{name: getattr(environment, name) for name in names},
        "primary_address": address or "<self>",
        "primary_port": port,
        "node_address": environment.node_address,
        "peers": list(environment.peers),
        "ifname_hint": environment.interface_hint,
        "rdzv_endpoint": endpoint(address, port) if address and port else None,
    }


@pytest.mark.parametrize("fixture", UNDERSTOOD, ids=lambda fixture: fixture["id"])
def test_captured_environment_is_understood(fixture: dict[str, Any], tmp_path: Path) -> None:
    expected = {name: value for name, value in fixture["expected"].items() if value is not None}
    expected.pop("rdzv_backend", None)  # how to rendezvous is the plan's choice
    environment = read(fixture, tmp_path)
    told = as_told(environment)
    assert {name: told[name] for name in expected} == expected
    assert environment.provider == ("none" if fixture["variant"] == "no-cluster-variables" else fixture["provider"])


@pytest.mark.parametrize("fixture", REFUSED, ids=lambda fixture: fixture["id"])
def test_contradiction_is_refused_and_quoted(fixture: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        read(fixture, tmp_path)
    assert "\n" not in caught.value.problem
    assert caught.value.fix
    assert [part for part in QUOTED[fixture["id"]] if part not in caught.value.problem] == []


def test_every_platform_of_the_table_has_a_captured_environment() -> None:
    captured = {fixture["provider"] for fixture in FIXTURES}
    elsewhere = {"leaderworkerset", "vast", "processes", "mpi", "torchrun-defaults", "none"}  # in test_environment.py
    assert {row.name for row in ROWS} - elsewhere <= captured
