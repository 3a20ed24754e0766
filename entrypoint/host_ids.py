"""NCCL takes processes with one host name and boot id for neighbours in one memory; nodes must differ in it. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from entrypoint.reasons import Setting


@dataclass(frozen=True, slots=True)
class Host:
    """What NCCL hashes to know a machine again."""

    name: str
    boot_id: str | None  # /proc/sys/kernel/random/boot_id; some sandboxes show all of theirs the same
    given: str | None = None  # NCCL_HOSTID from outside, which takes the place of both


def host_ids(nodes: Mapping[int, Host]) -> Mapping[int, Setting]:
    """NCCL_HOSTID for the nodes, by rank, that NCCL would take for one machine (NVIDIA/nccl#879); others get none."""
    seen = Counter(_identity(host) for host in nodes.values())
    return {
        rank: Setting("NCCL_HOSTID", f"{host.name}-node{rank}", _reason(host, seen[_identity(host)]))
        for rank, host in nodes.items()
        if seen[_identity(host)] > 1
    }


def _identity(host: Host) -> tuple[str | None, ...]:
    return (host.given,) if host.given else (host.name, host.boot_id)


def _reason(host: Host, count: int) -> str:
    if host.given:
        return f"NCCL_HOSTID={host.given} is the same on {count} nodes; NCCL would take them for one machine"
    return f"{count} nodes have the host name {host.name} and one boot id; NCCL would take them for one machine"
