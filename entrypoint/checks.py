"""What facts mean for this plan: findings with the measured value and a fix. Pure; `doctor` will show them too."""

from collections.abc import Iterator

from entrypoint.cluster import Cluster
from entrypoint.facts import Facts
from entrypoint.reasons import Finding

# Sources of the number of processes that count no GPUs.
_MEANT_FOR_CPU = ("TRAIN_NPROC", "no GPU", "LOCAL_WORLD_SIZE", "WORLD_SIZE")


def check(cluster: Cluster, facts: Facts, *, gpus: int, is_process: bool) -> tuple[Finding, ...]:
    """Findings in the order in which a person should read them: what stops first."""
    found = [
        *_process(cluster, is_process),
        *_ranks(cluster, is_process),
        *_gpus(cluster, facts, gpus),
        *_volume(facts),
        *_memory(facts),
    ]
    return tuple(sorted(found, key=lambda finding: ("stop", "warn", "ok").index(finding.level)))


def _process(cluster: Cluster, is_process: bool) -> Iterator[Finding]:
    if is_process:
        yield Finding(
            "ok",
            f"one of {cluster.world_size} processes that run already ({cluster.provider}): no launcher, no roll call, "
            "no restarts by us",
        )


def _ranks(cluster: Cluster, is_process: bool) -> Iterator[Finding]:
    if cluster.node_rank is None and cluster.nodes > 1 and not is_process:
        yield Finding("ok", f"the {cluster.nodes} nodes get their ranks by arrival; the primary is node 0")


def _gpus(cluster: Cluster, facts: Facts, gpus: int) -> Iterator[Finding]:
    if facts.gpus is None:
        yield Finding("warn", "an NVIDIA driver is here, but NVML does not answer", "run nvidia-smi and read its error")
    elif facts.gpus and not gpus:
        yield Finding("warn", f"CUDA_VISIBLE_DEVICES hides all {len(facts.gpus)} GPUs", "unset it to train on them")
    elif not gpus and cluster.sources.get("processes_per_node", "TRAIN_NPROC") not in _MEANT_FOR_CPU:
        yield Finding(
            "warn",
            f"{cluster.sources['processes_per_node']} counts GPUs and none is seen: "
            f"{cluster.processes_per_node} processes a node train on the CPU",
            "check that the container was started with its GPUs",
        )
    for gpu in facts.gpus or ():
        if gpu.fabric_state not in (None, "completed", "not supported"):
            yield Finding(
                "warn",
                f"GPU {gpu.index}: NVLink fabric is {gpu.fabric_state}",
                "start nvidia-fabricmanager on the host",
            )


def _volume(facts: Facts) -> Iterator[Finding]:
    volume = facts.volume
    if volume.exists and volume.writable is False:
        yield Finding("stop", f"{volume.path} is not writable", "mount it read-write, or run as a user who may write")
    if volume.exists and volume.mounted is False and facts.container is not None:
        yield Finding(
            "warn",
            f"{volume.path} is not a mount: what is written there is lost with the container",
            "mount a volume there",
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.shm_bytes is not None and facts.shm_bytes <= 64 * 2**20:
        yield Finding(
            "warn",
            f"/dev/shm has {facts.shm_bytes / 2**20:.0f} MiB: data loaders and NCCL may die with a bus error",
            "docker run --shm-size 16g, or a memory-backed emptyDir at /dev/shm",
        )
    ports = [port for port in facts.rdma if port.active]
    if ports and not any(port.usable for port in ports):
        yield Finding(
            "warn",
            f"{len(ports)} RDMA ports are visible but cannot be opened: traffic falls back to sockets",
            "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1",
        )
    elif ports and facts.memlock_bytes is not None:
        yield Finding(
            "warn", f"locked memory is limited to {facts.memlock_bytes} bytes: RDMA will fail", "--ulimit memlock=-1"
        )
