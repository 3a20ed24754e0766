"""Other environments of the same platforms, platforms inside one another, our overrides, and what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoint.environment import Environment, endpoint, read_environment
from entrypoint.errors import SettingError

RUNPOD = {
    "PRIMARY_ADDR": "10.65.0.2",
    "PRIMARY_PORT": "29500",
    "MASTER_ADDR": "10.65.0.2",
    "MASTER_PORT": "29500",
    "NODE_ADDR": "10.65.0.3",
    "NODE_RANK": "1",
    "NUM_NODES": "2",
    "NUM_TRAINERS": "8",
    "HOST_NODE_ADDR": "10.65.0.2:29500",
    "WORLD_SIZE": "16",
}
PLAIN = {"MASTER_ADDR": "10.0.0.9", "NODE_RANK": "1", "WORLD_SIZE": "16"}
POD = {"MASTER_ADDR": "m-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2"}
LIGHTNING = {"MASTER_ADDR": "10.0.4.10", "MASTER_PORT": "29400", "NUM_NODES": "4", "NODE_RANK": "1", "WORLD_SIZE": "32"}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.1.4\n10.0.1.5",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}
DSTACK = {
    "DSTACK_NODES_IPS": "10.0.2.4\n10.0.2.5",
    "DSTACK_MASTER_NODE_IP": "10.0.2.4",
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_GPUS_PER_NODE": "8",
    "DSTACK_GPUS_NUM": "16",
}
SLURM_JOB = {
    "SLURM_JOB_ID": "9",
    "SLURM_NNODES": "4",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_NODELIST": "gpu[003,007-009]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "1(x4)",
    "SLURM_GPUS_ON_NODE": "8",
}
SLURM_STEP = SLURM_JOB | {"SLURM_STEP_ID": "0", "SLURM_NODEID": "2", "SLURM_PROCID": "2"}
SLURM_TASKS = SLURM_STEP | {
    "SLURM_NTASKS": "32",
    "SLURM_TASKS_PER_NODE": "8(x4)",
    "SLURM_PROCID": "17",
    "SLURM_LOCALID": "1",
}
SLURM_ALONE = SLURM_JOB | {
    "SLURM_NNODES": "1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NODELIST": "gpu003",
    "SLURM_NTASKS": "8",
    "SLURM_TASKS_PER_NODE": "8",
}
TORCHRUN = {
    "RANK": "9",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0.svc",
    "MASTER_PORT": "41231",
    "TORCHELASTIC_RUN_ID": "x",
}
AZURE = {"AZUREML_RUN_ID": "r", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105", "WORLD_SIZE": "16"}
OPENMPI = {
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
BATCH = {
    "AWS_BATCH_JOB_NUM_NODES": "4",
    "AWS_BATCH_JOB_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "2",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.3.10",
}
KUBEFLOW = {
    "MASTER_ADDR": "bert-master-0",
    "MASTER_PORT": "23456",
    "RANK": "2",
    "WORLD_SIZE": "24",
    "PET_NNODES": "3",
    "PET_NODE_RANK": "2",
    "PET_NPROC_PER_NODE": "8",
}
TRAINER = {
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "gpu",
    "PET_NODE_RANK": "3",
    "PET_MASTER_ADDR": "llm-node-0-0.llm",
    "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "3",
}
ELASTIC = {"PET_RDZV_ENDPOINT": "bert-worker-0:23456", "PET_NNODES": "2:4", "PET_NPROC_PER_NODE": "8"}
VERTEX_POOLS = {"workerpool0": ["chief-0:2222"], "workerpool1": ["w-0:2222", "w-1:2222"]}
TORCHX = {
    "TORCHX_RANK0_HOST": "job-trainer-0-0.job",
    "VC_TRAINER_0_HOSTS": "job-trainer-0-0.job",
    "VC_TRAINER_0_NUM": "1",
    "VC_TRAINER_1_HOSTS": "job-trainer-1-0.job",
    "VC_TRAINER_1_NUM": "1",
    "VC_TASK_INDEX": "0",
    "HOSTNAME": "job-trainer-1-0",
}
LWS = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "lws-0.lws.default"}


def without(variables: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name not in names}


def vertex(role: str, index: int, pools: Mapping[str, list[str]] = VERTEX_POOLS) -> dict[str, str]:
    return {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": {"type": role, "index": index}})}


def sagemaker(host: str, gpus: str = "8") -> dict[str, str]:
    hosts = ["algo-1", "algo-10", "algo-2"]
    return {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": host, "SM_NUM_GPUS": gpus}


def selected(environment: Environment, expected: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(environment, name) for name in expected}


def place(nodes: int | None, node_rank: int | None, local: int | None, address: str | None) -> dict[str, Any]:
    return {"nodes": nodes, "node_rank": node_rank, "processes_per_node": local, "primary_address": address}


VARIANTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "address of the primary alone: one node": ({"MASTER_ADDR": "10.65.0.2"}, place(1, 0, None, "10.65.0.2")),
    "runpod: a prefix length is stripped": (
        RUNPOD | {"PRIMARY_ADDR": "10.65.0.2/24", "MASTER_ADDR": "10.65.0.2/24", "NODE_ADDR": "10.65.0.3/24"},
        place(2, 1, 8, "10.65.0.2") | {"node_address": "10.65.0.3"},
    ),
    "runpod: a pod list of one": (
        RUNPOD | {"NUM_NODES": "1", "NODE_RANK": "0", "WORLD_SIZE": "8"},
        place(1, 0, 8, "10.65.0.2"),
    ),
    "runpod: NUM_NODES beats stray PET_*": (
        {"NUM_NODES": "1", "NUM_TRAINERS": "1", "PET_NNODES": "3:3", "PET_NPROC_PER_NODE": "2"}
        | {"PET_RDZV_ENDPOINT": "x:1"},
        place(1, 0, 1, "127.0.0.1")
        | {
            "provider": "runpod-cluster",
            "ignored": {"PET_NNODES=3:3": "nodes", "PET_NPROC_PER_NODE=2": "processes_per_node"},
        },
    ),
    "NUM_NODES alone beats stray PET_*": (
        {"NUM_NODES": "1", "PET_NNODES": "3:3", "PET_NPROC_PER_NODE": "2"},
        place(1, 0, None, "127.0.0.1"),
    ),
    "torchrun's defaults alone": (
        {"PET_NPROC_PER_NODE": "2"},
        place(1, 0, 2, "127.0.0.1") | {"provider": "torchrun-defaults"},
    ),
    "values with quotes, blanks and CR": (
        {name: f' "{text}" \r\n' for name, text in RUNPOD.items()},
        place(2, 1, 8, "10.65.0.2") | {"primary_port": 29500},
    ),
    "empty is unset": (
        RUNPOD | {"MASTER_ADDR": "", "MASTER_PORT": " ", "WORLD_SIZE": '""'},
        place(2, 1, 8, "10.65.0.2"),
    ),
    "bracketed v6 loses its brackets": (
        {"MASTER_ADDR": "[::1]", "NUM_NODES": "1", "NUM_TRAINERS": "2"},
        place(1, 0, 2, "::1"),
    ),
    "a port inside the address counts": (
        {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "[2001:db8::10]:29400"},
        place(2, 1, None, "2001:db8::10") | {"primary_port": 29400},
    ),
    "plainest: processes per node to be seen": (PLAIN, place(None, 1, None, "10.0.0.9") | {"world_size": 16}),
    "plainest: TRAIN_NPROC divides": (PLAIN | {"TRAIN_NPROC": "8"}, place(2, 1, 8, "10.0.0.9") | {"world_size": 16}),
    "plainest: TRAIN_NODES divides": (PLAIN | {"TRAIN_NODES": "2"}, place(2, 1, 8, "10.0.0.9")),
    "plainest: loopback means all are here": (
        PLAIN | {"MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0"},
        place(1, 0, 16, "127.0.0.1"),
    ),
    "pod contract: WORLD_SIZE counts nodes": (POD | {"NPROC_PER_NODE": "8"}, place(2, 1, 8, "m-0")),
    "pod contract of one": (POD | {"RANK": "0", "WORLD_SIZE": "1"}, place(1, 0, None, "m-0")),
    "pod contract with NUM_NODES: WORLD_SIZE counts processes": (
        POD | {"NUM_NODES": "2", "WORLD_SIZE": "16"},
        place(2, 1, 8, "m-0"),
    ),
    "indexed job with the user's NNODES": (
        {"JOB_COMPLETION_INDEX": "2", "RANK": "2", "NNODES": "4", "MASTER_ADDR": "w-0.w", "MASTER_PORT": "3389"},
        place(4, 2, None, "w-0.w") | {"provider": "kubernetes-indexed-job"},
    ),
    "indexed job: NODE_RANK beats the index": (
        {"JOB_COMPLETION_INDEX": "2", "NODE_RANK": "1", "NNODES": "4", "MASTER_ADDR": "w-0.w"},
        place(4, 1, None, "w-0.w"),
    ),
    "indexed job of one": ({"JOB_COMPLETION_INDEX": "0"}, place(1, 0, None, "127.0.0.1")),
    "mosaicml: BASE_RANK": (
        {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "BASE_RANK": "8", "MASTER_ADDR": "10.0.5.10"},
        place(2, 1, 8, "10.0.5.10") | {"provider": "mosaicml"},
    ),
    "lightning: TRAIN_NODES keeps the processes per node": (
        LIGHTNING | {"TRAIN_NODES": "2"},
        place(2, 1, 8, "10.0.4.10"),
    ),
    "lightning of one": (LIGHTNING | {"NUM_NODES": "1", "NODE_RANK": "0"}, place(1, 0, 32, "10.0.4.10")),
    "skypilot of one": (
        {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.1.4", "SKYPILOT_NUM_GPUS_PER_NODE": "1"},
        place(1, 0, 1, "10.0.1.4"),
    ),
    "skypilot: CRLF list, own address from it": (
        SKYPILOT | {"SKYPILOT_NODE_IPS": "10.0.1.4\r\n10.0.1.5\r\n"},
        place(2, 1, 8, "10.0.1.4") | {"node_address": "10.0.1.5"},
    ),
    "skypilot: the user's MASTER_PORT": (SKYPILOT | {"MASTER_PORT": "8008"}, {"primary_port": 8008}),
    "skypilot inside slurm": (SKYPILOT | SLURM_STEP, place(2, 1, 8, "10.0.1.4") | {"provider": "skypilot"}),
    "skypilot inside a runpod cluster: neither its address nor its port": (
        SKYPILOT | RUNPOD,
        place(2, 1, 8, "10.0.1.4")
        | {
            "primary_port": None,
            "ignored": {"MASTER_ADDR=10.65.0.2": "primary_address", "MASTER_PORT=29500": "primary_port"},
        },
    ),
    "dstack inside a runpod pod": (
        DSTACK | {"RUNPOD_POD_ID": "abc"},
        place(2, 1, 8, "10.0.2.4") | {"provider": "dstack"},
    ),
    "dstack of one": (
        {"DSTACK_NODES_NUM": "1", "DSTACK_NODE_RANK": "0", "DSTACK_GPUS_PER_NODE": "0", "DSTACK_GPUS_NUM": "0"},
        place(1, 0, None, "127.0.0.1"),
    ),
    "dstack: processes of mpirun are not launched again": (
        DSTACK | OPENMPI,
        place(2, 1, 8, "10.0.2.4") | {"provider": "openmpi", "rank": 9, "local_rank": 1},
    ),
    "slurm step: one task a node": (SLURM_STEP, place(4, 2, 8, "gpu003") | {"rank": None, "primary_port": 15009}),
    "slurm step on part of the job": (
        SLURM_STEP
        | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[008-009]", "SLURM_NODEID": "1"}
        | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
        place(2, 1, 8, "gpu008"),
    ),
    "slurm step of one node in a larger job": (
        SLURM_STEP
        | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu009", "SLURM_NODEID": "0", "SLURM_NTASKS": "1"}
        | {"SLURM_STEP_NUM_TASKS": "1"},
        place(1, 0, 8, "gpu009"),
    ),
    "slurm: the step's tasks beat the job's list": (
        SLURM_STEP | {"SLURM_STEP_NUM_TASKS": "32", "SLURM_PROCID": "17", "SLURM_LOCALID": "1"},
        place(4, 2, 8, "gpu003") | {"rank": 17, "local_rank": 1, "world_size": 32},
    ),
    "slurm: several tasks a node": (
        SLURM_TASKS,
        place(4, 2, 8, "gpu003") | {"rank": 17, "local_rank": 1, "world_size": 32},
    ),
    "slurm: eight tasks on one node": (
        SLURM_ALONE | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "3"},
        place(1, 0, 8, "gpu003") | {"rank": 3, "local_rank": 3, "world_size": 8},
    ),
    "slurm: a batch script on one node is one process": (
        SLURM_ALONE,
        place(1, 0, 8, "gpu003") | {"rank": None, "world_size": None},
    ),
    "slurm: salloc's shell on one node": (
        {"SLURM_JOB_ID": "9", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "a1"},
        place(1, 0, None, "a1"),
    ),
    "slurm: the batch script's MASTER_ADDR and port": (
        SLURM_STEP | {"MASTER_ADDR": "gpu003-ib", "MASTER_PORT": "29501"},
        place(4, 2, 8, "gpu003-ib") | {"primary_port": 29501},
    ),
    "slurm: a typed number of GPUs": (
        without(SLURM_STEP, "SLURM_GPUS_ON_NODE") | {"SLURM_GPUS_PER_NODE": "h100:4"},
        place(4, 2, 4, "gpu003"),
    ),
    "slurm on runpod: the variables of the submitting pod are not this node's": (
        SLURM_STEP | RUNPOD | {"NODE_RANK": "0"},
        place(4, 2, 8, "10.65.0.2") | {"provider": "slurm", "primary_port": 29500},
    ),
    "slurm: a stray PET_NPROC_PER_NODE": (SLURM_STEP | {"PET_NPROC_PER_NODE": "2"}, place(4, 2, 8, "gpu003")),
    "slurm: PET_* made by the user's script": (
        SLURM_STEP | TRAINER | {"PET_NODE_RANK": "2"},
        place(4, 2, None, "llm-node-0-0.llm") | {"provider": "kubeflow-trainer-v2"},
    ),
    "slurm: PET_RDZV_ENDPOINT without a rank": (
        SLURM_STEP | {"PET_NNODES": "4", "PET_RDZV_ENDPOINT": "gpu003:29400"},
        place(4, 2, None, "gpu003") | {"primary_port": 29400},
    ),
    "kubeflow 1.7: integer nproc": (KUBEFLOW, place(3, 2, 8, "bert-master-0") | {"world_size": 24}),
    "kubeflow 1.7: gpu": (
        KUBEFLOW | {"PET_NPROC_PER_NODE": "gpu", "WORLD_SIZE": "3"},
        place(3, 2, None, "bert-master-0"),
    ),
    "kubeflow 1.7: a master alone": (
        KUBEFLOW | {"PET_NNODES": "1", "PET_NODE_RANK": "0", "RANK": "0", "WORLD_SIZE": "8"},
        place(1, 0, 8, "bert-master-0"),
    ),
    "kubeflow elastic with a master: the endpoint is the primary": (
        KUBEFLOW | {"PET_NNODES": "2:4", "PET_RDZV_ENDPOINT": "bert-worker-0:23456"},
        place(4, None, 8, "bert-worker-0") | {"min_nodes": 2},
    ),
    "trainer v2 of one": (
        {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "n-0-0.n"},
        place(1, 0, None, "n-0-0.n"),
    ),
    "trainer v2 elastic": (
        TRAINER | {"PET_NNODES": "2:4"},
        place(4, None, None, "llm-node-0-0.llm") | {"min_nodes": 2, "provider": "kubeflow-trainer-v2"},
    ),
    "torchrun inside runpod by arrival": (
        RUNPOD | TORCHRUN | {"GROUP_RANK": "0", "RANK": "1"},
        place(2, 0, 8, "node-0.svc") | {"rank": 1, "primary_port": 41231, "provider": "torchrun"},
    ),
    "torchrun on one node inside runpod": (
        RUNPOD | TORCHRUN | {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "8", "RANK": "1"},
        place(1, 0, 8, "node-0.svc") | {"world_size": 8},
    ),
    "a process that is told three numbers": (
        {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.4"},
        place(None, None, None, "10.0.0.4") | {"rank": 9, "local_rank": 1, "world_size": 16, "provider": "processes"},
    ),
    "azure: node 0 knows no size of a node": (
        AZURE | {"RANK": "1", "LOCAL_RANK": "1", "NODE_RANK": "0"},
        place(None, 0, None, "10.0.0.4") | {"rank": 1, "world_size": 16},
    ),
    "azure: AZUREML_NODE_COUNT": (
        AZURE | {"RANK": "1", "LOCAL_RANK": "1", "NODE_RANK": "0", "AZUREML_NODE_COUNT": "2"},
        place(2, 0, 8, "10.0.0.4"),
    ),
    "azure: one process a node becomes a node when told so": (
        AZURE | {"RANK": "1", "LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "2", "TRAIN_NPROC": "8"},
        place(2, 1, 8, "10.0.0.4") | {"rank": None, "world_size": None},
    ),
    "azure over MPI: the port is not torch's": (
        OPENMPI | {"AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"},
        place(2, 1, 8, "10.0.0.4") | {"primary_port": None, "provider": "azureml"},
    ),
    "azure over MPI: the older name": (
        OPENMPI | {"AZ_BATCHAI_MPI_MASTER_NODE": "10.0.0.4"},
        place(2, 1, 8, "10.0.0.4") | {"provider": "azureml"},
    ),
    "open mpi on one node": (
        OPENMPI | {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "1"},
        place(1, 0, 8, "127.0.0.1") | {"rank": 1},
    ),
    "open mpi in a slurm allocation: its first host": (
        OPENMPI | SLURM_JOB | {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "a[1-2]"},
        place(2, 1, 8, "a1") | {"provider": "openmpi"},
    ),
    "sagemaker: lexicographic order is the order": (sagemaker("algo-2"), place(3, 2, 8, "algo-1")),
    "sagemaker: algo-10 is second": (
        sagemaker("algo-10", gpus="0") | {"SM_NETWORK_INTERFACE_NAME": "eth0"},
        place(3, 1, None, "algo-1") | {"interface_hint": "eth0"},
    ),
    "sagemaker of one": ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}, place(1, 0, None, "algo-1")),
    "vertex: chief": (vertex("workerpool0", 0), place(3, 0, None, "chief-0")),
    "vertex: chief alone": (vertex("workerpool0", 0, {"workerpool0": ["chief-0:2222"]}), place(1, 0, None, "chief-0")),
    "vertex: MASTER_ADDR is localhost on the chief": (
        vertex("workerpool0", 0) | {"MASTER_ADDR": "localhost", "MASTER_PORT": "3333", "RANK": "0", "WORLD_SIZE": "3"},
        place(3, 0, None, "chief-0") | {"primary_port": 3333},
    ),
    "aws batch: the main node is rank 0 wherever it is": (BATCH, place(4, 3, None, "10.0.3.10")),
    "aws batch: main node 2": (
        without(BATCH, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS") | {"AWS_BATCH_JOB_NODE_INDEX": "2"},
        place(4, 0, None, None),
    ),
    "aws batch of one": (
        {"AWS_BATCH_JOB_NUM_NODES": "1", "AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"},
        place(1, 0, None, "127.0.0.1"),
    ),
    "leaderworkerset": (LWS, place(2, 1, None, "lws-0.lws.default")),
    "volcano: index of the only group": (
        {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "w-0.j,w-1.j", "VC_WORKER_NUM": "2", "NPROC_PER_NODE": "8"},
        place(2, 1, 8, "w-0.j"),
    ),
    "torchx on volcano: by its own name": (TORCHX, place(2, 1, None, "job-trainer-0-0.job")),
    "torchx on volcano: replica 0": (
        TORCHX | {"TORCHX_RANK0_HOST": "localhost", "HOSTNAME": "job-trainer-0-0"},
        place(2, 0, None, "job-trainer-0-0.job"),
    ),
    "torchx: the user's NNODES": (
        {"TORCHX_RANK0_HOST": "j-0", "TORCHX_REPLICA_IDX": "1", "NNODES": "2"},
        place(2, 1, None, "j-0"),
    ),
    "beaker: replica count": (
        {"BEAKER_REPLICA_RANK": "1", "BEAKER_REPLICA_COUNT": "2", "BEAKER_LEADER_REPLICA_HOSTNAME": "l.example"}
        | {"BEAKER_ASSIGNED_GPU_COUNT": "8"},
        place(2, 1, 8, "l.example"),
    ),
    "lepton of one": (
        {"LEPTON_JOB_TOTAL_WORKERS": "1", "LEPTON_JOB_WORKER_INDEX": "0"},
        place(1, 0, None, "127.0.0.1"),
    ),
    "vast": ({"VAST_CONTAINERLABEL": "C.1"}, place(1, 0, None, "127.0.0.1") | {"provider": "vast"}),
    "runpod pod with the user's cluster": (
        {"RUNPOD_POD_ID": "x", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a.runpod.internal"},
        place(2, 1, None, "a.runpod.internal") | {"provider": "runpod-pod"},
    ),
    "override: everything by hand": (
        {"TRAIN_NODES": "2", "TRAIN_NODE_RANK": "1", "TRAIN_NPROC": "4", "TRAIN_PRIMARY": "[fd00::2]:29501"}
        | {"TRAIN_INTERFACE": "=ens1, ens2"},
        place(2, 1, 4, "fd00::2") | {"primary_port": 29501, "interface_hint": "ens1,ens2", "provider": "none"},
    ),
    "override: bare v6": ({"TRAIN_PRIMARY": "fd00::2"}, {"primary_address": "fd00::2", "primary_port": None}),
    "override: TRAIN_PRIMARY settles MASTER_ADDR against PRIMARY_ADDR": (
        RUNPOD | {"MASTER_ADDR": "localhost", "TRAIN_PRIMARY": "10.65.0.2"},
        place(2, 1, 8, "10.65.0.2") | {"primary_port": 29500},
    ),
    "override: TRAIN_PRIMARY settles the ports": (
        RUNPOD | {"MASTER_PORT": "29400", "TRAIN_PRIMARY": "10.65.0.2:29600"},
        {"primary_port": 29600},
    ),
    "override: TRAIN_NODES=1 works alone": (
        RUNPOD | {"TRAIN_NODES": "1"},
        place(1, 0, 8, "127.0.0.1") | {"primary_port": None, "peers": ()},
    ),
    "override: TRAIN_NODES=1 in a batch script of four": (
        SLURM_JOB | {"TRAIN_NODES": "1"},
        place(1, 0, 8, "127.0.0.1"),
    ),
    "override: TRAIN_NODES=1 knows no processes per node": (
        PLAIN | {"TRAIN_NODES": "1"},
        place(1, 0, None, "127.0.0.1"),
    ),
    "override: TRAIN_NPROC beats the platform's arithmetic": (
        RUNPOD | {"TRAIN_NPROC": "4"},
        place(2, 1, 4, "10.65.0.2") | {"world_size": None},
    ),
    "override: TRAIN_NPROC settles WORLD_SIZE": (
        RUNPOD | {"WORLD_SIZE": "12", "TRAIN_NPROC": "6"},
        place(2, 1, 6, "10.65.0.2") | {"world_size": 12},
    ),
    "override: TRAIN_NPROC settles unequal nodes": (
        DSTACK | {"DSTACK_GPUS_NUM": "12", "TRAIN_NPROC": "4"},
        place(2, 1, 4, "10.0.2.4"),
    ),
    "override: fewer nodes than slurm's": (SLURM_STEP | {"TRAIN_NODES": "3"}, place(3, 2, 8, "gpu003") | {"peers": ()}),
    "local test cluster: loopback": (
        RUNPOD
        | {"PRIMARY_ADDR": "127.0.0.1/24", "MASTER_ADDR": "127.0.0.1", "TRAIN_LOCAL_CLUSTER": "1"}
        | {"HOST_NODE_ADDR": ""},
        place(2, 1, 8, "127.0.0.1"),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_understood(name: str, tmp_path: Path) -> None:
    variables, expected = VARIANTS[name]
    assert selected(read_environment(variables, tmp_path), expected) == expected


REFUSALS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "the product holds all three numbers": (
        RUNPOD | {"WORLD_SIZE": "12"},
        ("WORLD_SIZE=12", "NUM_NODES=2", "NUM_TRAINERS=8"),
    ),
    "ports differ": (RUNPOD | {"PRIMARY_PORT": "29400"}, ("PRIMARY_PORT=29400", "MASTER_PORT=29500")),
    "a baked localhost against the cloud's address": (
        RUNPOD | {"MASTER_ADDR": "localhost"},
        ("PRIMARY_ADDR=10.65.0.2", "MASTER_ADDR=localhost"),
    ),
    "the fallback name differs": (RUNPOD | {"HOST_NODE_ADDR": "10.65.0.7:29500"}, ("HOST_NODE_ADDR=10.65.0.7:29500",)),
    "NUM_NODES against NNODES": (
        RUNPOD | {"NUM_TRAINERS": "", "PRIMARY_ADDR": "", "HOST_NODE_ADDR": "", "NNODES": "3"},
        ("NUM_NODES=2", "NNODES=3"),
    ),
    "rank is one too high": (RUNPOD | {"NODE_RANK": "2"}, ("NODE_RANK=2", "0..1", "NUM_NODES=2")),
    "rank is a word": (RUNPOD | {"NODE_RANK": "one"}, ("NODE_RANK=one",)),
    "rank is a fraction": (RUNPOD | {"NODE_RANK": "1.5"}, ("NODE_RANK=1.5",)),
    "rank is negative": (RUNPOD | {"NODE_RANK": "-1"}, ("NODE_RANK=-1",)),
    "rank has full-width digits": (RUNPOD | {"NODE_RANK": "１"}, ("NODE_RANK=１",)),
    "rank has an exponent": (RUNPOD | {"NODE_RANK": "1e3"}, ("NODE_RANK=1e3",)),
    "rank is huge": (RUNPOD | {"NODE_RANK": "9" * 5000}, ("NODE_RANK=999", "5000 characters")),
    "rank is empty": (RUNPOD | {"NODE_RANK": ""}, ("NUM_NODES=2", "rank")),
    "no nodes": (RUNPOD | {"NUM_NODES": "0"}, ("NUM_NODES=0",)),
    "port is out of range": (RUNPOD | {"PRIMARY_PORT": "70000", "MASTER_PORT": "70000"}, ("PRIMARY_PORT=70000",)),
    "half an IPv4 address": (PLAIN | {"MASTER_ADDR": "10.65.2"}, ("MASTER_ADDR=10.65.2",)),
    "an address with a scheme": (PLAIN | {"MASTER_ADDR": "tcp://10.0.0.9"}, ("MASTER_ADDR=tcp://10.0.0.9",)),
    "loopback on node 0": (
        RUNPOD | {"NODE_RANK": "0", "PRIMARY_ADDR": "", "MASTER_ADDR": "127.0.1.1", "HOST_NODE_ADDR": ""},
        ("MASTER_ADDR=127.0.1.1", "NUM_NODES=2"),
    ),
    "loopback in v6": ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "[::1]:29500"}, ("MASTER_ADDR=[::1]:29500",)),
    "loopback from an override": (RUNPOD | {"TRAIN_PRIMARY": "localhost:29500"}, ("TRAIN_PRIMARY=localhost:29500",)),
    "plainest with loopback on node 1": (
        PLAIN | {"MASTER_ADDR": "localhost"},
        ("MASTER_ADDR=localhost", "WORLD_SIZE=16"),
    ),
    "plainest without a primary": (without(PLAIN, "MASTER_ADDR"), ("WORLD_SIZE=16", "MASTER_ADDR")),
    "plainest, not divisible": (PLAIN | {"TRAIN_NPROC": "5"}, ("WORLD_SIZE=16", "TRAIN_NPROC=5")),
    "plainest, rank beyond all processes": (PLAIN | {"NODE_RANK": "16"}, ("NODE_RANK=16", "WORLD_SIZE=16")),
    "overrides without a rank": ({"TRAIN_NODES": "2", "TRAIN_PRIMARY": "10.0.0.9:29500"}, ("TRAIN_NODES=2", "rank")),
    "overrides without a primary": ({"TRAIN_NODES": "2", "TRAIN_NODE_RANK": "1"}, ("TRAIN_NODES=2", "primary")),
    "override's rank out of range": (RUNPOD | {"TRAIN_NODE_RANK": "5"}, ("TRAIN_NODE_RANK=5", "0..1")),
    "override's rank without nodes": ({"TRAIN_NODE_RANK": "1"}, ("TRAIN_NODE_RANK=1", "number of nodes")),
    "override is no primary": ({"TRAIN_PRIMARY": "10.0.0.9:port"}, ("TRAIN_PRIMARY=10.0.0.9:port",)),
    "override is no interface": ({"TRAIN_INTERFACE": "^eth0"}, ("TRAIN_INTERFACE=^eth0",)),
    "eight processes already run here": (TORCHRUN | {"TRAIN_NPROC": "4"}, ("TRAIN_NPROC=4", "LOCAL_WORLD_SIZE=8")),
    "a rank beyond the world": (TORCHRUN | {"RANK": "16"}, ("RANK=16", "WORLD_SIZE=16")),
    "a local rank beyond the node": (TORCHRUN | {"LOCAL_RANK": "8"}, ("LOCAL_RANK=8", "LOCAL_WORLD_SIZE=8")),
    "a local rank alone": ({"LOCAL_RANK": "3"}, ("LOCAL_RANK=3",)),
    "mpirun --map-by node": (
        OPENMPI | {"MASTER_ADDR": "10.0.0.11", "OMPI_COMM_WORLD_RANK": "3"},
        ("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_LOCAL_SIZE=8"),
    ),
    "processes do not fill the nodes": (
        OPENMPI | {"OMPI_COMM_WORLD_SIZE": "12", "MASTER_ADDR": "10.0.0.11"},
        ("OMPI_COMM_WORLD_SIZE=12", "OMPI_COMM_WORLD_LOCAL_SIZE=8"),
    ),
    "bare PMI": ({"PMI_SIZE": "16", "PMI_RANK": "3"}, ("PMI_SIZE=16", "MPI_LOCALNRANKS")),
    "salloc's interactive step on four nodes": (
        SLURM_JOB | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu003"},
        ("SLURM_NNODES=4", "srun"),
    ),
    "slurm: a list of other nodes": (
        SLURM_STEP | {"SLURM_JOB_NODELIST": "gpu[003-004]"},
        ("SLURM_NNODES=4", "gpu[003-004]"),
    ),
    "slurm: a broken list": (SLURM_STEP | {"SLURM_JOB_NODELIST": "gpu[003-"}, ("SLURM_JOB_NODELIST=gpu[003-",)),
    "slurm: MASTER_ADDR of another node than the first": (
        SLURM_STEP | {"MASTER_ADDR": "gpu007"},
        ("MASTER_ADDR=gpu007",),
    ),
    "kubeflow: WORLD_SIZE is neither pods nor processes": (
        KUBEFLOW | {"WORLD_SIZE": "16"},
        ("WORLD_SIZE=16", "PET_NNODES=3", "PET_NPROC_PER_NODE=8"),
    ),
    "kubeflow: two ranks": (KUBEFLOW | {"RANK": "1"}, ("PET_NODE_RANK=2", "RANK=1")),
    "trainer v2 with torchtune: no primary": (without(TRAINER, "PET_MASTER_ADDR"), ("PET_NNODES=4", "primary")),
    "workers without rendezvous or rank": ({"PET_NNODES": "3"}, ("PET_NNODES=3", "rank")),
    "an empty range of nodes": (ELASTIC | {"PET_NNODES": "4:2"}, ("PET_NNODES=4:2",)),
    "an unknown word for processes": (TRAINER | {"PET_NPROC_PER_NODE": "all"}, ("PET_NPROC_PER_NODE=all",)),
    "skypilot: two addresses for three nodes": (
        SKYPILOT | {"SKYPILOT_NUM_NODES": "3"},
        ("SKYPILOT_NUM_NODES=3", "SKYPILOT_NODE_IPS"),
    ),
    "dstack: a node without GPUs": (
        DSTACK | {"DSTACK_GPUS_PER_NODE": "0"},
        ("DSTACK_GPUS_NUM=16", "DSTACK_GPUS_PER_NODE=0"),
    ),
    "sagemaker: a host that is not listed": (sagemaker("algo-3"), ("SM_CURRENT_HOST=algo-3", "algo-10")),
    "vertex: broken JSON": ({"CLUSTER_SPEC": "{"}, ("CLUSTER_SPEC={",)),
    "vertex: an index beyond the pool": (vertex("workerpool1", 2), ("index=2", "0..1")),
    "vertex: deep JSON": ({"CLUSTER_SPEC": "[" * 200_000}, ("CLUSTER_SPEC=[[[",)),
    "aws batch: a child without the main node's address": (
        without(BATCH, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
        ("AWS_BATCH_JOB_NUM_NODES=4", "primary"),
    ),
    "volcano: index of two groups": (
        {"VC_TASK_INDEX": "0", "VC_MASTER_HOSTS": "m-0.j", "VC_WORKER_HOSTS": "w-0.j"},
        ("VC_TASK_INDEX=0", "VC_MASTER_HOSTS", "VC_WORKER_HOSTS"),
    ),
    "indexed job: WORLD_SIZE of unknown meaning": (
        {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "w-0.w"},
        ("WORLD_SIZE=4",),
    ),
    "an index without a size": ({"JOB_COMPLETION_INDEX": "1"}, ("JOB_COMPLETION_INDEX=1", "number of nodes")),
    "torchx on replica 0 alone": ({"TORCHX_RANK0_HOST": "localhost"}, ("TORCHX_RANK0_HOST=localhost",)),
    "a value of several lines stays on one": (PLAIN | {"MASTER_ADDR": "a\nb"}, ("MASTER_ADDR=a\\nb",)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_contradiction_is_refused_in_one_line_that_quotes_it(name: str, tmp_path: Path) -> None:
    variables, parts = REFUSALS[name]
    with pytest.raises(SettingError) as caught:
        read_environment(variables, tmp_path)
    problem = caught.value.problem
    assert [part for part in parts if part not in problem] == []
    assert problem.isprintable()
    assert caught.value.fix
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("variables", "sources"),
    [
        ({}, {}),
        (
            LIGHTNING,
            {
                "nodes": "NUM_NODES",
                "node_rank": "NODE_RANK",
                "processes_per_node": "WORLD_SIZE ÷ NUM_NODES",
                "world_size": "WORLD_SIZE",
                "primary_address": "MASTER_ADDR",
                "primary_port": "MASTER_PORT",
            },
        ),
        (
            SKYPILOT | {"TRAIN_NPROC": "4"},
            {
                "nodes": "SKYPILOT_NUM_NODES",
                "node_rank": "SKYPILOT_NODE_RANK",
                "processes_per_node": "TRAIN_NPROC",
                "primary_address": "SKYPILOT_NODE_IPS",
                "node_address": "SKYPILOT_NODE_IPS",
                "peers": "SKYPILOT_NODE_IPS",
            },
        ),
    ],
)
def test_sources_name_the_variable_of_each_field_and_no_default(
    variables: dict[str, str], sources: dict[str, str], tmp_path: Path
) -> None:
    assert read_environment(variables, tmp_path).sources == sources


@pytest.mark.parametrize(
    ("path", "text", "variables", "part"),
    [
        ("opt/ml/input/config/resourceconfig.json", "{", {}, "resourceconfig.json"),
        (
            "opt/ml/input/config/resourceconfig.json",
            '{"hosts": "algo-1", "current_host": "algo-1"}',
            {},
            "hosts=algo-1",
        ),
        ("opt/ml/input/config/resourceconfig.json", '{"hosts": ["a", "b"], "current_host": 1}', {}, "current_host=1"),
        ("run/determined/info/rendezvous.json", "[]", {}, "rendezvous.json"),
        (
            "run/determined/info/rendezvous.json",
            '{"container_addrs": ["10.0.6.10", "10.0.6.11"], "container_rank": 1, "container_slot_counts": [8, 4]}',
            {"DET_SLOT_IDS": "[0,1,2,3]"},
            "[8, 4]",
        ),
        (
            "r",
            "\x00\n\xff",
            {"LSB_DJOB_RANKFILE": "/r", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "1"}
            | {"JSM_NAMESPACE_LOCAL_RANK": "0"},
            "/r cannot be read",
        ),
    ],
)
def test_file_unlike_its_platform_is_refused(
    path: str, text: str, variables: dict[str, str], part: str, tmp_path: Path
) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text, encoding="latin-1")
    with pytest.raises(SettingError) as caught:
        read_environment(variables, tmp_path)
    assert part in caught.value.problem
    assert caught.value.problem.isprintable()


def test_a_rank_file_that_never_ends_is_not_read(tmp_path: Path) -> None:
    variables = dict.fromkeys(("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"), "1")
    ranks = dict.fromkeys(("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"), "0")
    environment = read_environment(variables | ranks | {"LSB_DJOB_RANKFILE": "/dev/zero"}, Path("/"))
    assert environment.nodes == 1


def test_brackets_appear_in_host_and_port_only() -> None:
    assert endpoint("10.65.0.2", 29500) == "10.65.0.2:29500"
    assert endpoint("2001:db8::10", 29500) == "[2001:db8::10]:29500"
