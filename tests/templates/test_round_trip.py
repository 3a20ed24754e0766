"""What each platform tells each node of a rendered job → the plan of that node: nodes, ranks, processes, primary."""

import functools
import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from template_cases import documents, shell_variables

from entrypoint.capture import replay_facts
from entrypoint.environment import read_environment
from entrypoint.errors import SettingError
from entrypoint.facts import Facts, Interface
from entrypoint.plan import Plan, make_plan
from entrypoint.recipes import choose_recipe
from entrypoint.render import PLATFORMS, render
from entrypoint.render_files import write
from entrypoint.request import read_request

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = json.loads((ROOT / "tests/entrypoint/providers.json").read_text())
SIZES = (1, 2, 8)
LAPTOP = replay_facts(ROOT / "tests/machines/laptop")
EIGHT_GPUS = replay_facts(ROOT / "tests/machines/runpod-cluster").gpus


@dataclass(frozen=True)
class Node:
    """One node of the rendered job as its platform starts it."""

    variables: dict[str, str]  # of the template and of the platform
    injected: dict[str, str]  # of the platform alone
    gpus: int
    primary: str | None  # name or address of node 0; None: one node, which needs none


def address(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def facts_of(node: Node, rank: int, primary: str) -> Facts:
    fast = Interface("fast0", (f"{address(rank)}/24",), True, 9000, 100_000, "physical")
    volume = replace(LAPTOP.volume, exists=True, mounted=True, writable=True)
    gpus = EIGHT_GPUS[: node.gpus]
    assert len(gpus) == node.gpus
    return replace(LAPTOP, gpus=gpus, interfaces=(fast,), routes=((primary, address(rank)),), volume=volume)


def plan_of(node: Node, rank: int) -> Plan:
    environment = read_environment(node.variables)
    facts = facts_of(node, rank, environment.primary_address or address(0))
    request = read_request(node.variables)
    recipe = choose_recipe(request.script, base=ROOT)
    return make_plan(environment, facts, request, recipe, variables=node.variables, base=ROOT, in_image=True)


# ---- what each platform does with the file ----


def _pods(
    container: dict[str, Any],
    count: int,
    primary: str,
    told: Callable[[int], dict[str, str]],
    resources: dict[str, Any] | None = None,
) -> list[Node]:
    """Nodes of a Kubernetes template, of which `told` is what the controller sets in each."""
    own = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
    gpus = int((resources or container["resources"])["limits"].get("nvidia.com/gpu", 0))
    return [Node(own | told(rank), told(rank), gpus, primary if count > 1 else None) for rank in range(count)]


def _completion_index(rank: int) -> dict[str, str]:
    return {"JOB_COMPLETION_INDEX": str(rank)}


def kubernetes(given: dict[str, str]) -> list[Node]:
    _, service, job = documents("kubernetes", given)
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    primary = f"{job['metadata']['name']}-0.{pod['subdomain']}"  # the DNS of an indexed Job
    return _pods(pod["containers"][0], job["spec"]["completions"], primary, _completion_index)


def jobset(given: dict[str, str]) -> list[Node]:
    _, document = documents("jobset", given)
    (replicated,) = document["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    subdomain = document["spec"]["network"]["subdomain"]
    primary = f"{document['metadata']['name']}-{replicated['name']}-0-0.{subdomain}"
    return _pods(job["template"]["spec"]["containers"][0], job["completions"], primary, _completion_index)


def kubeflow_trainer(given: dict[str, str]) -> list[Node]:
    _, _, document = documents("kubeflow-trainer", given)
    name, trainer = document["metadata"]["name"], document["spec"]["trainer"]
    primary = f"{name}-node-0-0.{name}"

    def told(rank: int) -> dict[str, str]:
        return {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer.get("numProcPerNode", "auto")),
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": primary,
            "PET_MASTER_PORT": "29500",
            "JOB_COMPLETION_INDEX": str(rank),
        }

    return _pods(trainer, trainer["numNodes"], primary, told, trainer["resourcesPerNode"])


def pytorchjob(given: dict[str, str]) -> list[Node]:
    _, document = documents("pytorchjob", given)
    replicas = document["spec"]["pytorchReplicaSpecs"]
    count = sum(replica["replicas"] for replica in replicas.values())
    processes, primary = document["spec"]["nprocPerNode"], f"{document['metadata']['name']}-master-0"

    def told(rank: int) -> dict[str, str]:
        world = count * (int(processes) if processes.isdigit() else 1)
        return {
            **{"MASTER_ADDR": primary, "MASTER_PORT": "23456", "RANK": str(rank), "WORLD_SIZE": str(world)},
            **{"PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": processes, "PET_NNODES": str(count)},
            "PYTHONUNBUFFERED": "1",
        }

    return _pods(replicas["Master"]["template"]["spec"]["containers"][0], count, primary, told)


def pytorchjob_elastic(given: dict[str, str]) -> list[Node]:
    _, document = documents("pytorchjob-elastic", given)
    spec = document["spec"]
    elastic, worker = spec["elasticPolicy"], spec["pytorchReplicaSpecs"]["Worker"]
    primary = f"{document['metadata']['name']}-worker-0"

    def told(_: int) -> dict[str, str]:
        return {
            "PET_RDZV_ENDPOINT": f"{primary}:23456",
            "PET_RDZV_BACKEND": elastic["rdzvBackend"],
            "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
            "PET_NPROC_PER_NODE": spec["nprocPerNode"],
            "PET_RDZV_ID": document["metadata"]["name"],
            "PYTHONUNBUFFERED": "1",
        }

    return _pods(worker["template"]["spec"]["containers"][0], worker["replicas"], primary, told)


def _slurm(platform: str, given: dict[str, str]) -> list[Node]:
    text = render(platform, given)
    said = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", text, re.MULTILINE))
    count, gpus = int(said["nodes"]), int(said.get("gpus-per-node", 0))
    hosts = f"gpu[001-{count:03}]" if count > 1 else "gpu001"

    def told(rank: int) -> dict[str, str]:
        return {
            **{"SLURM_JOB_ID": "481516", "SLURM_STEP_ID": "0", "SLURM_NODEID": str(rank), "SLURM_PROCID": str(rank)},
            **{"SLURM_JOB_NUM_NODES": str(count), "SLURM_NNODES": str(count), "SLURM_STEP_NUM_NODES": str(count)},
            **{"SLURM_NTASKS": str(count), "SLURM_NTASKS_PER_NODE": said["ntasks-per-node"], "SLURM_LOCALID": "0"},
            "SLURM_TASKS_PER_NODE": f"1(x{count})" if count > 1 else "1",
            **{"SLURM_JOB_NODELIST": hosts, "SLURM_STEP_NODELIST": hosts},
            **({"SLURM_GPUS_ON_NODE": str(gpus)} if gpus else {}),
        }

    own = shell_variables(text)
    primary = "gpu001" if count > 1 else None
    return [Node(own | told(rank), told(rank), gpus, primary) for rank in range(count)]


def skypilot(given: dict[str, str]) -> list[Node]:
    (task,) = documents("skypilot", given)
    count = task["num_nodes"]
    gpus = int(task["resources"].get("accelerators", ":0").rpartition(":")[2])
    shared = {
        "SKYPILOT_NODE_IPS": "\n".join(map(address, range(count))),
        "SKYPILOT_NUM_NODES": str(count),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus),
        "SKYPILOT_TASK_ID": "sky-1",
    }
    told = [shared | {"SKYPILOT_NODE_RANK": str(rank)} for rank in range(count)]
    return [Node(task["envs"] | each, each, gpus, address(0) if count > 1 else None) for each in told]


def dstack(given: dict[str, str]) -> list[Node]:
    (task,) = documents("dstack", given)
    count = task["nodes"]
    gpus = int(str(task["resources"]["gpu"]).rpartition(":")[2])
    shared = {
        "DSTACK_NODES_IPS": "\n".join(map(address, range(count))),
        "DSTACK_MASTER_NODE_IP": address(0),
        "DSTACK_NODES_NUM": str(count),
        "DSTACK_GPUS_PER_NODE": str(gpus),
        "DSTACK_GPUS_NUM": str(gpus * count),
        "DSTACK_RUN_NAME": task["name"],
    }
    told = [shared | {"DSTACK_NODE_RANK": str(rank)} for rank in range(count)]
    return [Node(task["env"] | each, each, gpus, address(0)) for each in told]


def runpod_cluster(given: dict[str, str]) -> list[Node]:
    (body,) = documents("runpod-cluster", given)
    count, gpus = body["compute"]["podCount"], body["compute"]["gpuCountPerPod"]
    shared = {
        **{"PRIMARY_ADDR": address(0), "PRIMARY_PORT": "29500", "MASTER_ADDR": address(0), "MASTER_PORT": "29500"},
        **{"NUM_NODES": str(count), "NUM_TRAINERS": str(gpus), "WORLD_SIZE": str(count * gpus)},
        "HOST_NODE_ADDR": f"{address(0)}:29500",
    }
    told = [shared | {"NODE_RANK": str(rank), "NODE_ADDR": address(rank)} for rank in range(count)]
    return [Node(body["env"] | each, each, gpus, address(0)) for each in told]


def runpod_pod(given: dict[str, str]) -> list[Node]:
    (body,) = documents("runpod-pod", given)
    told = {"RUNPOD_POD_ID": "abc123def456gh"}
    return [Node(body["env"] | told, told, int(given.get("gpus", "8")), None)]


def vast(given: dict[str, str]) -> list[Node]:
    (body,) = documents("vast", given)
    own = shell_variables("export " + body["env"])
    told = {"VAST_CONTAINERLABEL": "C.1234", "GPU_COUNT": "8", "CONTAINER_ID": "1234"}
    return [Node(own | told, told, int(given.get("gpus", "8")), None)]


def vramfarm(given: dict[str, str]) -> list[Node]:
    lines = render("vramfarm", given).split("```")[1].strip().splitlines()
    return [Node(dict(line.split("=", 1) for line in lines), {}, int(given.get("gpus", "8")), None)]


def compose(given: dict[str, str]) -> list[Node]:
    (document,) = documents("compose", given)
    services = document["services"]
    chosen = [services["gpu"]] if "gpu" in services else list(services.values())
    primary = chosen[0].get("networks", {}).get("fabric", {}).get("aliases", [None])[0]
    return [Node(service["environment"], {}, int(given.get("gpus", "8")), primary) for service in chosen]


def vm(given: dict[str, str]) -> list[Node]:
    primary = address(0) if given["nodes"] != "1" else None
    return [Node(_docker_run(given, rank), {}, 8, primary) for rank in range(int(given["nodes"]))]


_STUB = tempfile.TemporaryDirectory()
write(Path(_STUB.name) / "docker", '#!/bin/bash\nprintf "%s\\0" "$@"\n')  # says what it was asked


def _docker_run(given: dict[str, str], rank: int) -> dict[str, str]:
    """The variables of `docker run` when the script is started on this machine."""
    command = ["bash", "-c", render("vm", given), "run.sh", str(rank), address(0)]
    environment = {"PATH": f"{_STUB.name}:/usr/bin:/bin", "HOME": _STUB.name}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split("\0")
    words = [said[index + 1] for index, word in enumerate(said) if word == "--env"]
    return dict(word.split("=", 1) for word in words)


NODES: dict[str, Callable[[dict[str, str]], list[Node]]] = {
    "runpod-pod": runpod_pod,
    "runpod-cluster": runpod_cluster,
    "vast": vast,
    "vramfarm": vramfarm,
    "vm": vm,
    "compose": compose,
    "kubernetes": kubernetes,
    "jobset": jobset,
    "kubeflow-trainer": kubeflow_trainer,
    "pytorchjob": pytorchjob,
    "pytorchjob-elastic": pytorchjob_elastic,
    "slurm": functools.partial(_slurm, "slurm"),
    "slurm-pyxis": functools.partial(_slurm, "slurm-pyxis"),
    "slurm-apptainer": functools.partial(_slurm, "slurm-apptainer"),
    "skypilot": skypilot,
    "dstack": dstack,
}

# The contracts in tests/entrypoint/providers.json that a platform's injected variables come from.
CONTRACTS = {
    "kubernetes": "kubernetes-indexed-job",
    "jobset": "kubernetes-jobset",
    "kubeflow-trainer": "kubeflow-trainer-v2",
    "pytorchjob": "kubeflow-pytorchjob-v1",
    "pytorchjob-elastic": "kubeflow-pytorchjob-v1",
    "slurm": "slurm",
    "slurm-pyxis": "slurm",
    "slurm-apptainer": "slurm",
    "skypilot": "skypilot",
    "dstack": "dstack",
    "runpod-cluster": "runpod-cluster",
    "runpod-pod": "runpod-pod",
}


def fits(platform: str, nodes: int) -> bool:
    least, most = PLATFORMS[platform].nodes
    return least <= nodes <= most


JOBS = [(platform, nodes) for platform in NODES for nodes in SIZES if fits(platform, nodes)]


@pytest.mark.parametrize(("platform", "nodes"), JOBS)
def test_every_node_of_a_rendered_job_finds_its_place(platform, nodes):
    started = NODES[platform]({"nodes": str(nodes)})
    assert len(started) == nodes
    for rank, node in enumerate(started):
        cluster = plan_of(node, rank).cluster
        told = (cluster.nodes, cluster.processes_per_node, cluster.world_size)
        assert told == (nodes, 8, 8 * nodes)
        by_arrival = platform == "pytorchjob-elastic" and nodes > 1
        assert cluster.node_rank == (None if by_arrival else rank)
        if node.primary is not None:
            assert cluster.primary_address == node.primary
        if nodes > 1:
            assert cluster.primary_port > 1024


@pytest.mark.parametrize("platform", [name for name in NODES if PLATFORMS[name].gpus[0] == 0 and name != "vm"])
def test_on_cpus_two_nodes_run_two_processes_each(platform):
    nodes = min(2, PLATFORMS[platform].nodes[1])
    given = {"gpus": "0"} | ({"nodes": "2"} if nodes == 2 else {})
    if platform == "runpod-pod":
        given = {"gpus": "0"}
    for rank, node in enumerate(NODES[platform](given)):
        assert node.gpus == 0
        cluster = plan_of(node, rank).cluster
        assert (cluster.nodes, cluster.processes_per_node) == (nodes, 2)


@pytest.mark.parametrize("platform", CONTRACTS)
def test_what_is_injected_here_is_what_the_contract_has(platform):
    known = {name for each in FIXTURES if each["provider"] == CONTRACTS[platform] for name in each["env"]}
    nodes = max(2, PLATFORMS[platform].nodes[0]) if fits(platform, 2) else 1
    for node in NODES[platform]({"nodes": str(nodes)}):
        assert node.injected
        assert node.injected.keys() <= known


@pytest.mark.parametrize("platform", [name for name in NODES if not all(fits(name, nodes) for nodes in SIZES)])
def test_a_size_that_a_platform_has_not_is_refused(platform):
    for nodes in SIZES:
        if not fits(platform, nodes):
            with pytest.raises(SettingError, match=f"nodes={nodes} cannot be"):
                render(platform, {"nodes": str(nodes)})


def table() -> str:
    """The table of docs/templates.md."""
    rows = [
        "| platform | taken for | nodes told by | rank told by | processes told by | primary of 2 nodes | 1 | 2 | 8 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for platform in NODES:
        plans = {nodes: _first(platform, nodes) for nodes in SIZES}
        seen = plans[2] or plans[1]
        assert seen is not None
        sources = seen.cluster.sources
        told = [sources.get(name, "-") for name in ("nodes", "node_rank", "processes_per_node")]
        if seen.cluster.node_rank is None:
            told[1] = "by arrival"
        primary = f"{seen.cluster.primary_address}:{seen.cluster.primary_port}" if plans[2] else "-"
        sizes = [_product(plan) for plan in plans.values()]
        cells = [f"`{platform}`", seen.cluster.provider, *told, primary, *sizes]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _product(plan: Plan | None) -> str:
    if plan is None:
        return "refused"
    return f"{plan.cluster.nodes} × {plan.cluster.processes_per_node} = {plan.cluster.world_size}"


def _first(platform: str, nodes: int) -> Plan | None:
    return plan_of(NODES[platform]({"nodes": str(nodes)})[-1], nodes - 1) if fits(platform, nodes) else None


def test_the_table_of_the_docs_is_what_comes_out():
    assert table() in (ROOT / "docs/templates.md").read_text()
