"""What the cloud said: variables (and the few files that platforms write) → Environment."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from entrypoint import provider_torch, readers, values
from entrypoint.errors import SettingError
from entrypoint.place import Place, read_place
from entrypoint.providers import OVERRIDES, Row, recognised
from entrypoint.readers import Reader, Told, Variables
from entrypoint.stale import STALE_VARIABLES, stale_variables
from entrypoint.values import endpoint

__all__ = ["STALE_VARIABLES", "Environment", "endpoint", "read_environment", "stale_variables"]

T = TypeVar("T")

LOCAL_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Environment:
    """One node's place in the cluster, as its platform told it; None = not told, decided later from facts."""

    provider: str  # the row that was recognised: "runpod-cluster", "slurm", … or "none"
    nodes: int | None = 1  # None: world_size was given and processes_per_node is still to be seen
    min_nodes: int | None = None  # elastic contracts: fewer nodes may do
    node_rank: int | None = 0  # None: by arrival, or a finished process that is not told its node
    processes_per_node: int | None = None
    world_size: int | None = None  # processes over all nodes, where the platform says it
    primary_address: str | None = None  # None: this node is the primary and its own address is not told
    primary_port: int | None = None
    node_address: str | None = None
    peers: tuple[str, ...] = ()  # addresses of all nodes in rank order
    interface_hint: str | None = None
    rank: int | None = None  # set with local_rank: a finished process contract, one process of many
    local_rank: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)  # field → the variable or file that told it
    ignored: Mapping[str, str] = field(default_factory=dict)  # "MASTER_ADDR=…", of lower trust → the field it missed


def read_environment(variables: Mapping[str, str], root: Path = Path("/")) -> Environment:
    """The cluster as this node's variables describe it; SettingError where they contradict each other."""
    seen = Variables.cleaned(variables, root)
    row = next(recognised(seen))
    place = read_place(row, seen)
    primary = _primary(row, place, seen)
    port = _port(row, place, primary, seen)
    place = _with_nodes(place, primary, seen)
    _check_ranks(place)
    _check_primary(row, place, primary, seen)
    _check_peers(place, primary)
    return _environment(row, place, primary, port, seen)


# ---- the network: where the primary is ----


def _primary(row: Row, place: Place, seen: Variables) -> Told[str] | None:
    """Our own, else that of the first row that knows; a node that was told to work alone asks nobody."""
    ours = OVERRIDES.primary(seen)
    if ours or place.alone:
        return ours
    told = (readers.either(lender.primary, readers.first_of(lender.peers))(seen) for lender in _lenders(row, seen))
    return next((found for found in told if found), None)


def _lenders(row: Row, seen: Variables) -> Iterator[Row]:
    return (lender for lender in recognised(seen) if lender is row or lender.lends)


def _port(row: Row, place: Place, primary: Told[str] | None, seen: Variables) -> Told[int] | None:
    """The port that belongs to the primary: one beside another node's address is another program's."""
    ours = OVERRIDES.port(seen)
    if ours or place.alone:
        return ours
    told = ((lender, lender.port(seen)) for lender in _lenders(row, seen))
    return next((port for lender, port in told if port and _is_of(primary, lender, seen)), None)


def _is_of(primary: Told[str] | None, row: Row, seen: Variables) -> bool:
    theirs = readers.quietly(row.primary)(seen)
    if theirs is None or primary is None or primary.source == "TRAIN_PRIMARY" or values.is_loopback(theirs.value):
        return True
    return values.comparable(theirs.value) == values.comparable(primary.value)


def _is_local_cluster(seen: Variables) -> bool:
    return seen.get("TRAIN_LOCAL_CLUSTER") == "1"  # nodes on one machine, for tests: loopback reaches all of them


def _names_a_node(primary: Told[str] | None, seen: Variables) -> bool:
    return primary is not None and (not values.is_loopback(primary.value) or _is_local_cluster(seen))


# ---- the number of nodes, where no variable holds it ----


def _with_nodes(place: Place, primary: Told[str] | None, seen: Variables) -> Place:
    if place.nodes is None:
        place = replace(place, nodes=_nodes(place, primary, seen))
    return place.on_one_node() if place.nodes is not None and place.nodes.value == 1 else place


def _nodes(place: Place, primary: Told[str] | None, seen: Variables) -> Told[int] | None:
    """One node where nothing speaks of others; None where the number of GPUs has to decide it."""
    rank, elsewhere = place.node_rank, _names_a_node(primary, seen)
    if place.world_size is not None:
        # Processes that meet on loopback are all of this node, whoever started them.
        first = rank.value == 0 if rank else place.is_process
        all_here = primary is not None and not elsewhere and first
        return Told(1, primary.source, primary.quote) if primary and all_here else None
    if rank and (rank.value or elsewhere):
        raise SettingError(
            f"{rank.quote}, but the number of nodes is not in the environment",
            fix="set NUM_NODES or TRAIN_NODES to the number of nodes, the same on all of them",
        )
    return Told(1, "", "one node")


# ---- refusals ----


def _check_ranks(place: Place) -> None:
    size = place.nodes or place.world_size
    if size is None:
        return
    if place.is_process:
        _check_process(place)
    elif place.node_rank is None and not place.by_arrival:
        raise SettingError(
            f"{size.quote}, but no variable tells the rank of this node",
            fix="give every node its own NODE_RANK or TRAIN_NODE_RANK, counting from 0",
        )
    if place.node_rank is not None and place.node_rank.value >= size.value:
        raise SettingError(
            f"{place.node_rank.quote} is outside 0..{size.value - 1} ({size.quote})",
            fix=f"give every node its own {place.node_rank.source or 'rank'}, counting from 0",
        )


def _check_process(place: Place) -> None:
    rank, local, world = place.rank, place.local_rank, place.world_size
    if rank is None or local is None or world is None:
        told = world or rank or local
        raise SettingError(
            f"{told.quote if told else 'one process of several'}, but rank, local rank and world size are not all told",
            fix="start it with the launcher that told it, or unset it",
        )
    limits = ((rank, world), (local, place.processes_per_node or world))
    for number, limit in limits:
        if number.value >= limit.value:
            raise SettingError(
                f"{number.quote} is outside 0..{limit.value - 1} ({limit.quote})",
                fix=f"leave {number.source} as the launcher set it",
            )


def _check_primary(row: Row, place: Place, primary: Told[str] | None, seen: Variables) -> None:
    """With more than one node the primary must be known, and no node may take itself for it."""
    size = place.nodes or place.world_size
    if size is None or (place.nodes is not None and place.nodes.value == 1) or _names_a_node(primary, seen):
        return
    if primary is not None:
        raise SettingError(
            f"{primary.quote} is loopback, but there are more nodes than one ({size.quote})",
            fix="set MASTER_ADDR or TRAIN_PRIMARY to the address of node rank 0 on the cluster network",
        )
    is_first = place.node_rank is not None and place.node_rank.value == 0
    if not row.needs_primary or (row.hides_primary and is_first):
        return
    raise SettingError(
        f"{size.quote}, but no address of the primary is told (MASTER_ADDR or the platform's own name is not set)",
        fix="set TRAIN_PRIMARY=host:port to node rank 0's address, the same on all nodes (one node: TRAIN_NODES=1)",
    )


def _check_peers(place: Place, primary: Told[str] | None) -> None:
    if place.peers is None or place.nodes is None or place.is_ours:
        return
    peers = place.peers.value
    if len(peers) != place.nodes.value:
        raise SettingError(
            f"{place.nodes.quote}, but {place.peers.quote} names {len(peers)} nodes",
            fix=f"correct {place.nodes.source} or {place.peers.source}, or set TRAIN_NODES",
        )
    if primary is None or primary.source == "TRAIN_PRIMARY" or primary.value not in peers:
        return
    if peers.index(primary.value) > 0:
        raise SettingError(
            f"{primary.quote} is node rank {peers.index(primary.value)} of {place.peers.quote}, not 0",
            fix=f"set {primary.source} to {peers[0]}, or unset it",
        )


# ---- the answer ----


def _environment(
    row: Row, place: Place, primary: Told[str] | None, port: Told[int] | None, seen: Variables
) -> Environment:
    nodes, node_rank, peers = _value(place.nodes), _value(place.node_rank), _value(place.peers) or ()
    told: dict[str, Told[Any] | None] = {
        "nodes": place.nodes,
        "min_nodes": place.min_nodes,
        "node_rank": place.node_rank,
        "processes_per_node": place.processes_per_node,
        "world_size": place.world_size,
        "primary_address": primary,
        "primary_port": port,
        "node_address": row.node_address(seen),
        "peers": place.peers if len(peers) == nodes else None,
        "interface_hint": OVERRIDES.interface_hint(seen) or row.interface_hint(seen),
        "rank": place.rank,
        "local_rank": place.local_rank,
    }
    if told["node_address"] is None and node_rank is not None and node_rank < len(peers) == nodes:
        told["node_address"] = place.peers and _ip_of(place.peers, node_rank)
    fields = {name: _value(answer) for name, answer in told.items()}
    if nodes == 1 and primary is None:
        fields["primary_address"] = LOCAL_ADDRESS
    environment = Environment(
        provider=row.name,
        sources={name: answer.source for name, answer in told.items() if answer and answer.source},
        **(fields | {"peers": fields["peers"] or ()}),
    )
    return replace(environment, ignored=_ignored(environment, seen))


def _value(told: Told[T] | None) -> T | None:
    return told.value if told else None


def _ip_of(peers: Told[tuple[str, ...]], node_rank: int) -> Told[str] | None:
    host = peers.value[node_rank]
    return Told(host, peers.source, peers.quote) if values.is_ip(host) else None


_COMMON_NAMES: tuple[tuple[str, Reader[Any]], ...] = (
    ("nodes", readers.number("NUM_NODES")),
    ("nodes", readers.number("NNODES")),
    ("nodes", provider_torch.pet_nodes),
    ("node_rank", readers.number("NODE_RANK")),
    ("processes_per_node", provider_torch.pet_processes),
    ("primary_address", readers.address("MASTER_ADDR")),
    ("primary_port", readers.port("MASTER_PORT")),
)


def _ignored(environment: Environment, seen: Variables) -> dict[str, str]:
    """Names of lower trust that say something else than what was decided: worth a line to the user."""
    told = ((name, readers.quietly(reader)(seen)) for name, reader in _COMMON_NAMES)
    return {
        said.quote: name
        for name, said in told
        if said and values.comparable(said.value) != values.comparable(getattr(environment, name))
    }
