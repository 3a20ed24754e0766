"""Memory, cores, limits and names of this machine or container: what facts mean for training in it. Pure."""

import math
from collections.abc import Iterator

from entrypoint.cluster import Cluster
from entrypoint.facts import Facts
from entrypoint.reasons import Check
from entrypoint.values import is_loopback
from entrypoint.volume import size

_SHM_FIX = (
    "docker run --shm-size 16g (compose: shm_size: 16g; Kubernetes: an emptyDir of medium Memory with a sizeLimit "
    "at /dev/shm)"
)
_FILES = 4096  # one socket to each peer and interface, files of the data, and what loader workers share
_CORES_A_GPU = 4  # four to eight are usual; below, loading data keeps GPUs waiting


def check_limits(cluster: Cluster, facts: Facts, *, gpus: int) -> Iterator[Check]:
    """What the kernel and the container allow."""
    yield from _shared_memory(facts, gpus)
    yield from _memory(facts, gpus)
    yield _cores(cluster, facts, gpus)
    yield _locked_memory(facts)
    yield _stack(facts)
    yield _open_files(cluster, facts, gpus)


def _shared_memory(facts: Facts, gpus: int) -> Iterator[Check]:
    if facts.shm_bytes is None:
        return
    wanted = (1 << 30) if gpus else 128 << 20
    has = f"/dev/shm has {facts.shm_bytes / 2**20:.0f} MiB"
    if facts.shm_bytes < wanted:
        text = f"{has}, {size(wanted)} or more are wanted: data loaders and NCCL may die with a bus error"
        yield Check("memory.shm", "warn", text, _SHM_FIX, facts.shm_bytes)
    else:
        yield Check("memory.shm", "ok", f"/dev/shm {size(facts.shm_bytes)}", value=facts.shm_bytes)


def _memory(facts: Facts, gpus: int) -> Iterator[Check]:
    if facts.memory_bytes is None:
        return
    on_gpus = sum(gpu.memory_bytes or 0 for gpu in facts.gpus or ()) if gpus else 0
    less = f" (the GPUs have {size(on_gpus)}: little room for offload)" if on_gpus > facts.memory_bytes else ""
    yield Check("memory.ram", "ok", f"memory {size(facts.memory_bytes)}{less}", value=facts.memory_bytes)


def cores(facts: Facts) -> float:
    """Cores' worth of time that this container may use."""
    return float(facts.cpus) if facts.cpu_quota is None else min(float(facts.cpus), facts.cpu_quota)


def threads(cluster: Cluster, facts: Facts) -> int:
    """OpenMP threads a process, when the cores are shared out."""
    return max(1, math.floor(cores(facts)) // cluster.processes_per_node)


def _cores(cluster: Cluster, facts: Facts, gpus: int) -> Check:
    count, processes = cores(facts), cluster.processes_per_node
    of = f" of {facts.cpus} (quota)" if count < facts.cpus else ""
    text = f"{count:g} cores{of} for {processes} processes: {threads(cluster, facts)} OpenMP threads each"
    if count < processes:
        fix = f"give the container more cores (--cpus), or start fewer processes (TRAIN_NPROC={max(1, int(count))})"
        return Check("cpu.cores", "warn", text, fix, count)
    if gpus and count / processes < _CORES_A_GPU:
        return Check(
            "cpu.cores", "warn", text, f"{_CORES_A_GPU} to 8 cores a GPU are usual; fewer may starve it", count
        )
    return Check("cpu.cores", "ok", text, value=count)


def _locked_memory(facts: Facts) -> Check:
    limit = facts.memlock_bytes
    if not any(port.active and port.usable for port in facts.rdma):
        return Check("limits.memlock", "n/a", "locked memory matters only with RDMA", value=limit)
    if limit is not None:
        text = f"locked memory is limited to {limit} bytes: RDMA will fail"
        return Check("limits.memlock", "warn", text, "docker run --ulimit memlock=-1", limit)
    return Check("limits.memlock", "ok", "locked memory unlimited")


def _stack(facts: Facts) -> Check:
    limit = facts.stack_bytes
    if limit is not None and limit < 8 << 20:
        text = f"the stack is limited to {size(limit)}: native libraries may crash"
        return Check("limits.stack", "warn", text, "docker run --ulimit stack=67108864", limit)
    return Check("limits.stack", "ok", f"stack {size(limit) if limit else 'unlimited'}", value=limit)


def _open_files(cluster: Cluster, facts: Facts, gpus: int) -> Check:
    limit = facts.open_files
    if limit is not None and limit < _FILES and (gpus or cluster.nodes > 1):
        text = f"{limit} open files a process: loaders and connections may meet 'too many open files'"
        return Check("limits.files", "warn", text, "docker run --ulimit nofile=1048576 (or ulimit -n)", limit)
    return Check("limits.files", "ok", f"{limit or 'unlimited'} open files", value=limit)


def check_names(cluster: Cluster, facts: Facts, *, meeting_port: int | None) -> Iterator[Check]:
    """The host's name, and the port where the primary waits for the others (None: there are none)."""
    name, addresses = facts.hostname or "(none)", facts.hostname_addresses
    if addresses:
        yield Check("network.hostname", "ok", f"{name} is {addresses[0]}", value=list(addresses))
    else:
        why = "does not resolve" if addresses == () else "was not resolved in 0.1 s"
        yield Check(
            "network.hostname",
            "warn" if cluster.nodes > 1 else "ok",
            f"{name} {why}; the plan names interfaces, so only programs that look themselves up would wait",
            "add it to /etc/hosts" if cluster.nodes > 1 else "",
            None if addresses is None else [],
        )
    if meeting_port is None or cluster.node_rank != 0:
        yield Check("network.port", "n/a", "nobody else connects to this node's ports to meet", value=meeting_port)
    elif meeting_port in facts.listening_ports and not is_loopback(cluster.primary_address or ""):
        text = f"port {meeting_port}, where the nodes are to meet, is taken on this node"
        fix = "end what listens there, or name another port in TRAIN_PRIMARY (they meet at the next one)"
        yield Check("network.port", "warn", text, fix, meeting_port)
    else:
        yield Check("network.port", "ok", f"port {meeting_port} is free for the others", value=meeting_port)


def check_rdma(facts: Facts) -> Iterator[Check]:
    """Whether the RDMA ports that sysfs lists can be used from here."""
    ports = [port for port in facts.rdma if port.active]
    value = [f"{port.device}:{port.port}" for port in ports]
    if not facts.rdma:
        yield Check("rdma.devices", "n/a", "no RDMA device: traffic between nodes takes sockets", value=value)
    elif not ports:
        yield Check("rdma.devices", "ok", f"no RDMA port is active ({len(facts.rdma)} are down)", value=value)
    elif not any(port.usable for port in ports):
        yield Check(
            "rdma.devices",
            "warn",
            f"{len(ports)} RDMA ports are visible but cannot be opened: traffic falls back to sockets",
            "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1",
            value,
        )
    else:
        rates = sorted({port.gbit_per_second for port in ports if port.gbit_per_second})
        speed = f" at {rates[0]:g} Gbit/s" if len(rates) == 1 else ""
        yield Check("rdma.devices", "ok", f"{len(ports)} RDMA ports active{speed}", value=value)
