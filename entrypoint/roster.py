"""Who is here, who is missing, and whether all say the same. Pure: statements in, ranks and findings out."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entrypoint.host_ids import Host
from entrypoint.measured import Measured
from entrypoint.messages import text_of
from entrypoint.rdma import Rdma, rdma_verdict
from entrypoint.reasons import Finding

Statement = Mapping[str, Any]
ALL_PAIRS_UP_TO = 16
CLOCK_SECONDS = 30.0
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Compared:
    """One thing that all nodes state: what a difference in it means, and what to do about it."""

    field: str
    what: str
    level: str  # "stop": training with it would hang, be wrong, or crash; "warn": it works
    fix: str


_SAME_IMAGE = "start every node from the same image"
_SAME_COMMAND = "give every node the same command and the same TRAIN_* variables"
COMPARED = (
    Compared("nodes", "number of nodes", "stop", "set the same number of nodes (TRAIN_NODES) on all"),
    Compared("processes", "processes per node", "stop", "every node runs the same number: set TRAIN_NPROC"),
    Compared("volume", "shared volume", "stop", "mount one volume on all nodes, and name it with TRAIN_VOLUME"),
    Compared("image", "image", "stop", _SAME_IMAGE),
    Compared("recipe", "script", "stop", _SAME_COMMAND),
    Compared("script", "content of the script", "stop", "put the same script on all nodes, or on the shared volume"),
    Compared("arguments", "arguments", "stop", _SAME_COMMAND),
    Compared("launcher", "launcher", "stop", _SAME_COMMAND),
    Compared("backend", "backend", "stop", "see why a node has no GPU: nvidia-smi there"),
    Compared("python", "Python", "stop", _SAME_IMAGE),
    Compared("torch", "torch", "stop", _SAME_IMAGE),
    Compared("nccl", "NCCL", "stop", _SAME_IMAGE),
    Compared("cuda", "CUDA", "stop", _SAME_IMAGE),
    Compared("deepspeed", "deepspeed", "stop", _SAME_IMAGE),
    Compared("accelerate", "accelerate", "stop", _SAME_IMAGE),
    Compared("transformers", "transformers", "stop", _SAME_IMAGE),
    Compared("restarts", "TRAIN_RESTARTS", "warn", "node 0's counts"),
    Compared("driver", "driver", "warn", "use hosts of one driver"),
    Compared("gpus", "GPUs", "warn", "the slowest sets the pace: use nodes of one kind"),
    Compared("shm", "/dev/shm", "warn", "start every container with the same --shm-size"),
    Compared("open_files", "limit of open files", "warn", "start every container with the same --ulimit nofile"),
    Compared("memlock", "limit of locked memory", "warn", "--ulimit memlock=-1 on all nodes"),
)
_ONLY_WITH_RDMA = ("memlock",)


def compare(statements: Mapping[int, Statement], offsets: Mapping[int, float] | None = None) -> tuple[Finding, ...]:
    """What the nodes do not agree on, what stops first; a node that differs is named by rank and host.

    `offsets`: seconds by which each node's clock is ahead of node 0's.
    """
    found = [finding for row in COMPARED if (finding := _difference(row, statements))]
    if mixed := rdma_verdict({rank: rdma for rank, one in statements.items() if (rdma := rdma_of(one))}):
        found.append(mixed)
    found += _clocks(statements, offsets or {})
    return tuple(sorted(found, key=lambda finding: finding.level != "stop"))


def rdma_of(statement: Statement) -> Rdma | None:
    """What a node's NCCL finds; None: NCCL is not used there."""
    told = statement.get("rdma")
    if not isinstance(told, Mapping):
        return None
    hcas, speed = told.get("hcas"), told.get("gbit_per_second")
    return Rdma(
        tuple(map(str, hcas)) if isinstance(hcas, list | tuple) else (),
        text_of(told, "link_layer") or None,
        float(speed) if isinstance(speed, int | float) else 0.0,
        text_of(told, "reason"),
    )


def host_of(statement: Statement) -> Host | None:
    """What NCCL knows a node's machine by; None: it is not used there."""
    if not isinstance(statement.get("rdma"), Mapping):
        return None
    return Host(
        text_of(statement, "host"), text_of(statement, "boot_id") or None, text_of(statement, "host_id") or None
    )


def _difference(row: Compared, statements: Mapping[int, Statement]) -> Finding | None:
    if row.field in _ONLY_WITH_RDMA and not any(
        one.hcas for statement in statements.values() if (one := rdma_of(statement))
    ):
        return None
    values = {rank: text_of(statement, row.field) for rank, statement in statements.items()}
    usual = _usual(values)
    others = [rank for rank, value in sorted(values.items()) if value != usual]
    if not others:
        return None
    first = others[0]
    alike = [rank for rank, value in values.items() if value == usual]
    rest = _name(alike[0], statements) if len(alike) == 1 else f"{len(alike)} others"
    more = f" ({len(others) - 1} more nodes differ)" if len(others) > 1 else ""
    text = (
        f"{row.what}: {_name(first, statements)} has {values[first] or 'none'}, {rest} {_has(alike)} "
        f"{usual or 'none'}{more}"
    )
    return Finding("stop" if row.level == "stop" else "warn", text, row.fix)


def _usual(values: Mapping[int, str]) -> str:
    """What most nodes say; where as many say otherwise, node 0's word counts."""
    counts = Counter(values.values())
    most = max(counts.values())
    return min((value for value in counts if counts[value] == most), key=lambda value: _first_with(value, values))


def _first_with(value: str, values: Mapping[int, str]) -> int:
    return min(rank for rank, other in values.items() if other == value)


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _clocks(statements: Mapping[int, Statement], offsets: Mapping[int, float]) -> Iterator[Finding]:
    far = {rank: offset for rank, offset in offsets.items() if abs(offset) > CLOCK_SECONDS and rank in statements}
    if far:
        rank = max(far, key=lambda rank: abs(far[rank]))
        yield Finding(
            "warn",
            f"clock: {_name(rank, statements)} is {far[rank]:+.0f} s from node 0's",
            "run a time service (chrony) on the hosts: logs and failures of the nodes are put in order by their clocks",
        )


def _name(rank: int, statements: Mapping[int, Statement]) -> str:
    return name(rank, text_of(statements[rank], "host"))


def name(rank: int, host: str | None) -> str:
    """
    >>> name(3, "gpu-a")
    'node 3 (gpu-a)'
    """
    return f"node {rank} ({host})" if host else f"node {rank}"


# ---- who is missing ----


@dataclass(frozen=True, slots=True)
class Absent:
    """What is known of a node that is not here."""

    address: str | None = None  # where the platform says it is
    host: str | None = None
    seconds_ago: float | None = None  # since it was here
    note: str | None = None  # who came in its name and was not let in


def waiting_line(nodes: int, here: Iterable[int], waited: float, known: Mapping[int, Absent]) -> str:
    """
    >>> waiting_line(4, [0, 3], 40, {1: Absent(host="b", seconds_ago=12), 2: Absent(address="10.65.0.4")})
    '2 of 4 nodes here after 40 s; missing: node 1 (b, seen 12 s ago), node 2 (10.65.0.4)'
    """
    present = set(here)
    missing = [rank for rank in range(nodes) if rank not in present]
    shown = ", ".join(_missing(rank, known.get(rank, Absent())) for rank in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return f"{len(present)} of {nodes} nodes here after {waited:.0f} s; missing: {shown}{more}"


def _missing(rank: int, absent: Absent) -> str:
    seen = f"seen {absent.seconds_ago:.0f} s ago" if absent.seconds_ago is not None else None
    told = [part for part in (absent.host or absent.address, seen, absent.note) if part]
    return f"node {rank} ({', '.join(told)})" if told else f"node {rank}"


# ---- who measures toward whom ----


def peers_of(rank: int, nodes: int) -> tuple[int, ...]:
    """All others up to 16 nodes; beyond, those at ring distances 1, 2, 4, 8 …: all pairs would be quadratic.

    >>> peers_of(30, 32)
    (31, 0, 2, 6, 14)
    """
    distances = range(1, nodes) if nodes <= ALL_PAIRS_UP_TO else [1 << k for k in range((nodes - 1).bit_length())]
    return tuple((rank + distance) % nodes for distance in distances if distance < nodes)


def unreachable(measured: Mapping[int, Sequence[Measured]], hosts: Mapping[int, str]) -> Finding | None:
    """The first way that leads nowhere, with both nodes and the interface; None: each node has a way to its peers."""
    stuck = {rank: rows for rank, rows in measured.items() if not any(one.carries for one in rows)}
    if not stuck:
        return None
    rank, tried = min(stuck.items(), key=lambda item: (len(item[1]), item[0]))
    node = name(rank, hosts[rank])
    if not tried:
        return Finding(
            "stop",
            f"{node} has no interface that can reach other nodes",
            "attach it to the cluster network, or name the interface with TRAIN_INTERFACE",
        )
    best = max(tried, key=lambda one: len(one.reached))
    if best.missed:
        return Finding(
            "stop",
            f"{node} does not reach {name(best.missed[0], hosts[best.missed[0]])} over {best.interface} "
            f"({best.detail}); {len(stuck)} of {len(measured)} nodes lack a way to all others",
            "open all TCP ports between the nodes on this network (firewall, security group), or name another "
            "interface with TRAIN_INTERFACE",
        )
    to = next(iter(best.reached), rank)
    return Finding(
        "stop",
        f"{node} connects to {name(to, hosts[to])} over {best.interface}, but larger packets do not arrive "
        f"({best.detail})",
        f"a link between them carries less than the MTU of {best.interface}; lower it on all nodes: "
        f"`ip link set {best.interface} mtu 1400`",
    )


# ---- ranks by arrival ----


def rank_for(machine: str, owners: Mapping[int, str], nodes: int, *, gone: Callable[[str], bool]) -> int | None:
    """The rank of a machine that was told none: its own from before, else the lowest that is free, else one whose owner
    is gone; None where there is none. Rank 0 is the primary's own."""
    for rank, owner in sorted(owners.items()):
        if owner == machine:
            return rank
    for rank in range(1, nodes):
        if rank not in owners:
            return rank
    return next((rank for rank in range(1, nodes) if gone(owners[rank])), None)
