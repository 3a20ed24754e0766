"""The platforms, in order of trust: how each is recognised, and which of its variables tells which of our fields.

A new cloud is a row here and a captured environment in tests/entrypoint/providers.json. The first row that recognises
the variables decides the node's place; rows below it may only add an address, a port or an interface that it leaves
open. Sources of the names: the column "source" of that file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from entrypoint import provider_documents as documents
from entrypoint import provider_pods as pods
from entrypoint import provider_slurm as slurm
from entrypoint import provider_torch as torch
from entrypoint.readers import (
    Condition,
    Reader,
    Variables,
    address,
    count,
    either,
    has,
    has_any,
    hosts,
    interfaces,
    nothing,
    number,
    port,
    port_in,
    same,
    unrecognised,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One platform: a condition, and for each field the reader that knows it."""

    name: str
    when: Condition
    nodes: Reader[int] = nothing
    min_nodes: Reader[int] = nothing
    node_rank: Reader[int] = nothing
    processes_per_node: Reader[int] = nothing
    world_size: Reader[int] = nothing  # in processes
    rank: Reader[int] = nothing  # told with local_rank: this process is one of many, started by somebody else
    local_rank: Reader[int] = nothing
    peers: Reader[tuple[str, ...]] = nothing  # also tells the number of nodes and the primary, if nothing else does
    primary: Reader[str] = nothing
    port: Reader[int] = nothing
    node_address: Reader[str] = nothing
    interface_hint: Reader[str] = nothing
    by_arrival: Condition = unrecognised  # ranks are given by a rendezvous: none is told
    hides_primary: bool = False  # node 0 is not told its own address
    needs_primary: bool = True  # False: several processes may be left to find each other in their own way
    lends: bool = True  # may add an address or port to a row above it


def _never(*conditions: Condition) -> Condition:
    return lambda seen: not any(condition(seen) for condition in conditions)


def _all(*conditions: Condition) -> Condition:
    return lambda seen: all(condition(seen) for condition in conditions)


def _any(*conditions: Condition) -> Condition:
    return lambda seen: any(condition(seen) for condition in conditions)


_torch_primary = address("MASTER_ADDR")
_torch_port = same(port("MASTER_PORT"), port_in("MASTER_ADDR"))
_user_processes = number("NPROC_PER_NODE")

OVERRIDES = Row(
    "overrides",
    when=unrecognised,
    nodes=count("TRAIN_NODES"),
    node_rank=number("TRAIN_NODE_RANK"),
    processes_per_node=count("TRAIN_NPROC"),
    primary=address("TRAIN_PRIMARY"),
    port=port_in("TRAIN_PRIMARY"),
    interface_hint=interfaces("TRAIN_INTERFACE"),
)

# ---- 1. Processes that somebody has started: they are never launched again ----

_PROCESS = Row(
    "processes",
    when=has("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    nodes=count("GROUP_WORLD_SIZE", "CROSS_SIZE", "AZUREML_NODE_COUNT"),
    node_rank=torch.torch_node_rank,
    processes_per_node=torch.torch_local_size,
    world_size=count("WORLD_SIZE"),
    rank=number("RANK"),
    local_rank=number("LOCAL_RANK"),
    primary=_torch_primary,
    port=_torch_port,
    node_address=address("NODE_ADDR"),
    needs_primary=False,
)


def _mpi(name: str, rank: str, local_rank: str, size: str, local_size: str) -> Row:
    return Row(
        name,
        when=has(rank, local_rank, size, local_size),
        node_rank=torch.block_node_rank(rank, local_rank, local_size),
        processes_per_node=count(local_size),
        world_size=count(size),
        rank=number(rank),
        local_rank=number(local_rank),
        # AZ_BATCH_MASTER_NODE is host:port, but the port belongs to Azure Batch.
        primary=either(_torch_primary, address("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE")),
        port=_torch_port,
    )


# OMPI_COMM_WORLD_NODE_RANK is no node rank: it counts processes on the node, over all jobs.
_OPENMPI = _mpi("openmpi", *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")))
_MVAPICH = _mpi("mvapich2", *(f"MV2_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")))
_HYDRA = _mpi("intel-mpi", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")
_AZURE = has_any("AZUREML_RUN_ID", "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "AZUREML_EXPERIMENT_ID")
_AZURE_MPI = replace(_OPENMPI, name="azureml", when=_all(_OPENMPI.when, _AZURE))
_MPI = (_AZURE_MPI, _OPENMPI, _HYDRA, _MVAPICH)


def _several(row: Row) -> Row:
    """The row where it has started several processes on this node: then it beats every platform underneath.

    With `mpirun --hostfile $DSTACK_MPI_HOSTFILE` the cloud's variables are still there, in each of 8 processes.
    """

    def several(seen: Variables) -> bool:
        told = row.processes_per_node(seen) if row.when(seen) else None
        return told is not None and told.value > 1

    return replace(row, when=several)


_LSF = Row(
    "lsf",
    when=has("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
    processes_per_node=count("JSM_NAMESPACE_LOCAL_SIZE"),
    node_rank=documents.lsf_node_rank,
    world_size=count("JSM_NAMESPACE_SIZE"),
    rank=number("JSM_NAMESPACE_RANK"),
    local_rank=number("JSM_NAMESPACE_LOCAL_RANK"),
    peers=documents.lsf_peers,
    primary=_torch_primary,
    port=_torch_port,
)

_SLURM = Row(
    "slurm",
    when=slurm.slurm_job,
    nodes=slurm.slurm_nodes,
    node_rank=slurm.slurm_node_rank,
    processes_per_node=either(slurm.slurm_gpus, _user_processes),
    peers=slurm.slurm_peers,
    # Slurm sets no MASTER_ADDR: the user's batch script did. SLURM_LAUNCH_NODE_IPADDR is where srun ran.
    primary=_torch_primary,
    port=either(_torch_port, slurm.slurm_port),
)

_SLURM_TASKS = replace(
    _SLURM,
    when=slurm.slurm_many_tasks,
    processes_per_node=slurm.slurm_tasks_per_node,
    world_size=count("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    rank=number("SLURM_PROCID"),
    local_rank=number("SLURM_LOCALID"),
)

# ---- 2. Orchestrators of tasks, before those of machines ----

_KUBEFLOW = Row(
    "kubeflow-trainer-v2",
    when=has("PET_NNODES", "PET_NODE_RANK"),
    nodes=torch.pet_nodes,
    min_nodes=torch.pet_min_nodes,
    node_rank=either(torch.pet_node_rank, slurm.slurm_step_rank),
    processes_per_node=torch.pet_processes,
    world_size=torch.pet_world_size,
    # An elastic PyTorchJob's endpoint is worker 0, its MASTER_ADDR another pod: torchrun takes the endpoint.
    primary=either(address("PET_RDZV_ENDPOINT"), same(address("PET_MASTER_ADDR"), _torch_primary)),
    port=either(port_in("PET_RDZV_ENDPOINT"), same(port("PET_MASTER_PORT"), port("MASTER_PORT"))),
    by_arrival=torch.pet_by_arrival,
    lends=False,  # beside another contract PET_* are strays (kubeflow/trainer#2277)
)

_ORCHESTRATORS = (
    Row(
        "skypilot",
        when=has_any("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES"),
        nodes=count("SKYPILOT_NUM_NODES"),
        node_rank=number("SKYPILOT_NODE_RANK"),
        processes_per_node=number("SKYPILOT_NUM_GPUS_PER_NODE"),
        peers=hosts("SKYPILOT_NODE_IPS"),
    ),
    Row(
        "dstack",
        when=has_any("DSTACK_NODES_NUM", "DSTACK_NODE_RANK"),
        nodes=count("DSTACK_NODES_NUM"),
        node_rank=number("DSTACK_NODE_RANK"),
        processes_per_node=number("DSTACK_GPUS_PER_NODE"),
        world_size=number("DSTACK_GPUS_NUM"),
        peers=hosts("DSTACK_NODES_IPS"),
        primary=address("DSTACK_MASTER_NODE_IP"),
    ),
    Row(
        "runpod-cluster",
        # srun hands the variables of the pod where it was typed to every task: there NODE_RANK is always 0.
        when=_all(has_any("NUM_TRAINERS", "PRIMARY_ADDR", "HOST_NODE_ADDR"), _never(slurm.slurm_step)),
        nodes=count("NUM_NODES"),
        node_rank=number("NODE_RANK"),
        processes_per_node=number("NUM_TRAINERS"),
        world_size=number("WORLD_SIZE"),
        primary=same(address("PRIMARY_ADDR"), _torch_primary, address("HOST_NODE_ADDR")),
        port=same(port("PRIMARY_PORT"), port("MASTER_PORT"), port_in("HOST_NODE_ADDR"), port_in("PRIMARY_ADDR")),
        node_address=address("NODE_ADDR"),
    ),
    replace(
        _KUBEFLOW,
        name="kubeflow-pytorchjob-v1",
        when=_all(has("PET_NNODES"), has_any("PET_RDZV_ENDPOINT", "RANK")),
    ),
    _KUBEFLOW,
    Row(
        "sagemaker",
        when=documents.sagemaker,
        node_rank=documents.sagemaker_node_rank,
        processes_per_node=number("SM_NUM_GPUS"),
        peers=documents.sagemaker_peers,
        interface_hint=documents.sagemaker_interface,
    ),
    Row(
        "vertex-ai",
        when=has("CLUSTER_SPEC"),
        node_rank=documents.vertex_node_rank,
        processes_per_node=_user_processes,
        peers=documents.vertex_peers,
    ),
    Row(
        "aws-batch",
        when=has("AWS_BATCH_JOB_NUM_NODES"),
        nodes=count("AWS_BATCH_JOB_NUM_NODES"),
        node_rank=pods.aws_batch_node_rank,
        processes_per_node=_user_processes,
        primary=address("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
        hides_primary=True,
    ),
    Row(
        "determined",
        when=documents.determined,
        node_rank=documents.determined_node_rank,
        processes_per_node=documents.determined_slots,
        peers=documents.determined_peers,
        port=port("C10D_PORT"),
        interface_hint=interfaces("DET_INTER_NODE_NETWORK_INTERFACE"),
    ),
    Row(
        "dgx-cloud-lepton",
        when=has("LEPTON_JOB_TOTAL_WORKERS"),
        nodes=count("LEPTON_JOB_TOTAL_WORKERS"),
        node_rank=number("LEPTON_JOB_WORKER_INDEX"),
        processes_per_node=number("LEPTON_RESOURCE_ACCELERATOR_NUM"),
        primary=pods.lepton_primary,
    ),
    Row(
        "volcengine-ml",
        when=has("MLP_WORKER_NUM"),
        nodes=count("MLP_WORKER_NUM"),
        node_rank=number("MLP_ROLE_INDEX"),
        processes_per_node=number("MLP_WORKER_GPU"),
        primary=address("MLP_WORKER_0_HOST"),
        port=port("MLP_WORKER_0_PORT"),
    ),
    Row(
        "leaderworkerset",
        when=has_any("LWS_GROUP_SIZE", "LWS_WORKER_INDEX"),
        nodes=either(count("LWS_GROUP_SIZE"), torch.user_nodes),
        node_rank=number("LWS_WORKER_INDEX"),
        processes_per_node=_user_processes,
        primary=address("LWS_LEADER_ADDRESS"),
    ),
    Row(
        "ai2-beaker",
        when=has("BEAKER_REPLICA_RANK"),
        nodes=either(torch.user_nodes, count("BEAKER_REPLICA_COUNT")),
        node_rank=number("BEAKER_REPLICA_RANK"),
        processes_per_node=either(_user_processes, number("BEAKER_ASSIGNED_GPU_COUNT")),
        primary=address("BEAKER_LEADER_REPLICA_HOSTNAME", "BEAKER_LEADER_REPLICA_IP"),
    ),
)

# ---- 3. Names that several platforms share ----

_GENERIC = Row(
    "generic",
    when=has_any(
        "NUM_NODES",
        "NNODES",
        "NODE_RANK",
        "RANK",
        "LOCAL_RANK",
        "BASE_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    ),
    nodes=either(torch.user_nodes, torch.world_as_nodes),
    node_rank=either(
        number("NODE_RANK"), torch.composer_node_rank, torch.pod_rank, number("JOB_COMPLETION_INDEX"), torch.lone_rank
    ),
    processes_per_node=number("NPROC_PER_NODE", "LOCAL_WORLD_SIZE"),
    world_size=torch.world_as_processes,
    primary=_torch_primary,
    port=_torch_port,
    node_address=address("NODE_ADDR"),
)


def _like_generic(name: str, when: Condition) -> Row:
    return replace(_GENERIC, name=name, when=when)


_SHARED = (
    Row(
        "torchx",
        when=has("TORCHX_RANK0_HOST"),
        nodes=either(torch.user_nodes, pods.torchx_nodes),
        node_rank=pods.torchx_node_rank,
        processes_per_node=_user_processes,
        primary=pods.torchx_primary,
        hides_primary=True,
    ),
    replace(
        _GENERIC,
        name="volcano",
        when=has_any("VC_TASK_INDEX", "VK_TASK_INDEX"),
        node_rank=either(number("NODE_RANK"), torch.pod_rank, pods.volcano_node_rank),
        peers=pods.volcano_peers,
    ),
    _like_generic("mosaicml", _all(has("WORLD_SIZE", "LOCAL_WORLD_SIZE"), has_any("NODE_RANK", "BASE_RANK"))),
    _like_generic("lightning-ai", has("NUM_NODES", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR")),
    _like_generic("kubernetes-indexed-job", has("JOB_COMPLETION_INDEX")),
    _like_generic("alibaba-pai-dlc", has("RANK", "WORLD_SIZE", "NPROC_PER_NODE", "MASTER_ADDR")),
    # The operator up to 1.6 alone sets this variable to "0".
    _like_generic(
        "kubeflow-pytorchjob-v1",
        _all(has("RANK", "WORLD_SIZE", "MASTER_ADDR"), lambda seen: seen.get("PYTHONUNBUFFERED") == "0"),
    ),
    _like_generic("runpod-pod", has("RUNPOD_POD_ID")),
    _like_generic("vast", has_any("VAST_CONTAINERLABEL", "VAST_TCP_PORT_22")),
    _GENERIC,
    # torchrun's own defaults alone: a stray one must not add anything to another contract.
    replace(
        _KUBEFLOW,
        name="torchrun-defaults",
        when=_all(has_any("PET_NNODES", "PET_NPROC_PER_NODE"), _never(_GENERIC.when)),
    ),
)

ROWS: tuple[Row, ...] = (
    replace(_PROCESS, name="torchrun", when=_all(_PROCESS.when, has_any("TORCHELASTIC_RUN_ID", "GROUP_RANK"))),
    replace(_PROCESS, name="azureml", when=_all(_PROCESS.when, _AZURE)),
    replace(_PROCESS, name="ray-train", when=_all(_PROCESS.when, has("LOCAL_WORLD_SIZE", "NODE_RANK"))),
    _PROCESS,
    _LSF,
    *(_several(row) for row in _MPI),
    _SLURM_TASKS,
    *_ORCHESTRATORS,
    *_MPI,
    _SLURM,
    replace(_HYDRA, name="mpi", when=has("PMI_SIZE"), nodes=pods.refuse_bare_mpi("PMI_SIZE", "MPI_LOCALNRANKS")),
    *_SHARED,
    Row("none", when=lambda seen: True),
)


def recognised(seen: Variables) -> Iterator[Row]:
    """The rows that know these variables, the most trusted first; there is always one."""
    return (row for row in ROWS if row.when(seen))
