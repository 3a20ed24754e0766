"""Looks at this machine and changes nothing: `probe` gives Facts, in which whatever did not answer is None."""

import re
from collections.abc import Sequence
from pathlib import Path

from entrypoint.facts import Facts
from entrypoint.probe_limits import read_cpu_quota, read_machine_memory, read_memory_limit
from entrypoint.probe_machine import THIS_MACHINE, Files, Machine, parse_int
from entrypoint.probe_network import read_interfaces, read_listening_ports, read_nccl_conf, read_rdma, read_routes
from entrypoint.probe_nvml import Driver
from entrypoint.probe_storage import Mount, read_mounts, read_shm_bytes, read_volume

# Kubernetes first: a pod's container may carry the mark of the engine below it as well.
_CONTAINER_FILES = (
    ("/var/run/secrets/kubernetes.io", "kubernetes"),
    ("/run/.containerenv", "podman"),
    ("/.dockerenv", "docker"),
    ("/.singularity.d", "apptainer"),
)
_CONTAINER_CGROUPS = (("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker"), ("lxc", "lxc"))


def probe(
    volume: Path,
    *,
    targets: Sequence[str] = (),
    nccl_conf_file: str | None = None,
    machine: Machine = THIS_MACHINE,
) -> Facts:
    """Everything that can be seen here: of `volume`, and of the routes to `targets`, numeric addresses of other nodes.

    `nccl_conf_file` is what NCCL_CONF_FILE says.

    Takes some milliseconds where everything answers. What may be slow has a limit: a name server 0.1 s, the volume's
    server 2 s, NVML 60 s.
    """
    files = machine.files
    mounts = read_mounts(files)
    hostname = machine.hostname()
    driver = _read_driver(machine)
    memory_limit = read_memory_limit(files, mounts)
    memories = [number for number in (read_machine_memory(files), memory_limit) if number is not None]
    return Facts(
        hostname=hostname,
        hostname_addresses=machine.resolve(hostname) if hostname else (),
        container=_read_container(files, mounts),
        cpus=machine.cores(),
        cpu_quota=read_cpu_quota(files, mounts),
        memory_bytes=min(memories, default=None),
        gpus=driver.gpus,
        driver_version=driver.version,
        driver_cuda=driver.cuda,
        interfaces=read_interfaces(machine),
        rdma=read_rdma(machine),
        nccl_conf=read_nccl_conf(machine, nccl_conf_file),
        boot_id=files.read("/proc/sys/kernel/random/boot_id"),
        routes=read_routes(machine, targets),
        shm_bytes=read_shm_bytes(machine, memory_limit),
        memlock_bytes=machine.soft_limit("memlock"),
        stack_bytes=machine.soft_limit("stack"),
        open_files=machine.soft_limit("nofile"),
        volume=read_volume(machine, mounts, volume),
        listening_ports=read_listening_ports(machine),
        software=machine.software(),
        user_id=parse_int(_status(files, "Uid", 1)),
        capabilities=_bits(_status(files, "CapEff", 0)),
    )


def _read_driver(machine: Machine) -> Driver:
    """What NVML says; where it is silent, the kernel module's own file tells "no GPU" from "GPU out of reach"."""
    said = machine.nvml()
    if said is not None:
        return said
    text = machine.files.read("/proc/driver/nvidia/version")
    # "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build …"
    version = re.search(r"\b[0-9]{3,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?\b", text or "")
    seems_there = text is not None or machine.files.exists("/dev/nvidiactl")
    return Driver(version=version[0] if version else None, cuda=None, gpus=None if seems_there else ())


def _status(files: Files, field: str, column: int) -> str | None:
    """A word of a line of /proc/self/status (proc(5)): "Uid" has the real, effective, saved and file system's id."""
    for line in (files.read("/proc/self/status") or "").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            words = rest.split()
            return words[column] if column < len(words) else None
    return None


def _bits(text: str | None) -> int | None:
    return int(text, 16) if text and re.fullmatch(r"[0-9a-f]{1,16}", text) else None


def _read_container(files: Files, mounts: tuple[Mount, ...]) -> str | None:
    """The engine whose marks are here: files it leaves, /proc/1/cgroup, or the note that systemd makes as process 1."""
    # Without a service account a pod has no secrets, but the kubelet still mounts its hosts file.
    if any(mount.point == "/etc/hosts" and "/pods/" in mount.root for mount in mounts):
        return "kubernetes"
    for path, engine in _CONTAINER_FILES:
        if files.exists(path):
            return engine
    cgroups = files.read("/proc/1/cgroup") or ""
    for word, engine in _CONTAINER_CGROUPS:
        if word in cgroups:
            return engine
    note = files.read("/run/systemd/container") or ""
    return note if re.fullmatch(r"[a-z0-9-]{1,32}", note) else None
