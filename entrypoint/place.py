"""A node's place among the others: what a row tells, what we override, and the arithmetic between the numbers."""

from dataclasses import dataclass, replace
from typing import TypeVar

from entrypoint.errors import SettingError
from entrypoint.providers import OVERRIDES, Row
from entrypoint.readers import Reader, Told, Variables, either, nothing, quietly, size_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Numbers with the names that told them; None: not told."""

    nodes: Told[int] | None = None
    min_nodes: Told[int] | None = None
    node_rank: Told[int] | None = None
    processes_per_node: Told[int] | None = None
    world_size: Told[int] | None = None
    rank: Told[int] | None = None
    local_rank: Told[int] | None = None
    peers: Told[tuple[str, ...]] | None = None
    by_arrival: bool = False
    is_process: bool = False  # started by somebody else: a rank and a local rank must be told
    is_ours: bool = False  # TRAIN_NODES decided

    @property
    def alone(self) -> bool:
        """TRAIN_NODES=1: whatever the platform says of other nodes is not for this run."""
        return self.is_ours and self.nodes is not None and self.nodes.value == 1

    def on_one_node(self) -> "Place":
        """The place where nothing but the node itself is left: rank 0, all processes here."""
        return replace(
            self,
            node_rank=self.node_rank or Told(0, "", "node rank 0"),
            processes_per_node=self.processes_per_node or self.world_size,
        )


def read_place(row: Row, seen: Variables) -> Place:
    """The place that this row tells, with our overrides over it."""
    ours = Place(
        nodes=OVERRIDES.nodes(seen),
        node_rank=OVERRIDES.node_rank(seen),
        processes_per_node=OVERRIDES.processes_per_node(seen),
    )
    if row.rank is nothing:
        return _solve(row, ours, seen)
    theirs = _solve(row, Place(), seen)
    changed = [
        (our, their)
        for our, their in (
            (ours.nodes, theirs.nodes),
            (ours.node_rank, theirs.node_rank),
            (ours.processes_per_node, theirs.processes_per_node),
        )
        if our and their and our.value != their.value
    ]
    if not changed:
        return _solve(row, ours, seen)
    if theirs.processes_per_node is None or theirs.processes_per_node.value != 1:
        our, their = changed[0]
        raise SettingError(
            f"{our.quote} cannot change what runs already: {their.quote}",
            fix=f"unset {our.source}, or have the platform start one process per node",
        )
    # One process per node is a node contract in disguise (Azure ML, mpirun -N 1): there we may start more.
    return _solve(replace(row, rank=nothing, local_rank=nothing), ours, seen)


def _solve(row: Row, ours: Place, seen: Variables) -> Place:
    """Two of nodes, processes per node and world size give the third; all three must agree."""
    alone = ours.nodes is not None and ours.nodes.value == 1
    overridden = ours.nodes is not None or ours.processes_per_node is not None
    peers = _ask(row.peers, ours.nodes, seen)
    world = _ask(row.world_size, ours.nodes or ours.processes_per_node, seen)
    world = world if world and world.value else None  # 0: a machine without GPUs
    one = world if world and world.value == 1 else None
    nodes = _ask(either(row.nodes, size_of(row.peers)), ours.nodes, seen) or one
    local = _ask(row.processes_per_node, ours.processes_per_node, seen)
    if not overridden:
        _check_product(nodes, local, world)
    local = local if local and local.value else one  # 0: decided from facts
    all_nodes = ours.nodes or nodes or _divide(world, local or ours.processes_per_node)
    all_local = ours.processes_per_node or local or _divide(world, nodes or (None if alone else ours.nodes))
    world_is_others = alone and all_local is None and row.rank is nothing
    return Place(
        nodes=all_nodes,
        min_nodes=None if ours.nodes else row.min_nodes(seen),
        node_rank=ours.node_rank or (None if alone else row.node_rank(seen)),
        processes_per_node=all_local,
        world_size=world if _is_product(all_nodes, all_local, world) and not world_is_others else None,
        rank=row.rank(seen),
        local_rank=row.local_rank(seen),
        peers=None if alone else peers,
        by_arrival=row.by_arrival(seen),
        is_process=row.rank is not nothing,
        is_ours=ours.nodes is not None,
    )


def _ask(reader: Reader[T], override: Told[int] | None, seen: Variables) -> Told[T] | None:
    return quietly(reader)(seen) if override else reader(seen)


def _divide(whole: Told[int] | None, part: Told[int] | None) -> Told[int] | None:
    if whole is None or part is None:
        return None
    if whole.value % part.value:
        raise SettingError(
            f"{whole.quote} is not a multiple of {part.quote}",
            fix=f"correct {whole.source} or {part.source}: the world is the same number of processes on every node",
        )
    quotient = whole.value // part.value
    return Told(quotient, f"{whole.source} ÷ {part.source}", f"{whole.quote} ÷ {part.quote} = {quotient}")


def _is_product(nodes: Told[int] | None, local: Told[int] | None, world: Told[int] | None) -> bool:
    if world is None or local is None or (nodes is None and local.value):
        return True
    return nodes is not None and nodes.value * local.value == world.value


def _check_product(nodes: Told[int] | None, local: Told[int] | None, world: Told[int] | None) -> None:
    if _is_product(nodes, local, world) or nodes is None or local is None or world is None:
        return
    raise SettingError(
        f"{world.quote} is not {nodes.quote} × {local.quote}",
        fix=f"correct one of {world.source}, {nodes.source} and {local.source}: every node runs the same number of "
        "processes; TRAIN_NODES and TRAIN_NPROC override them",
    )
