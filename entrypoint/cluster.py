"""The cluster with every number decided: what the platform said, completed by what this machine has."""

from collections.abc import Mapping
from dataclasses import dataclass

from entrypoint.environment import Environment
from entrypoint.errors import SettingError

DEFAULT_PORT = 29500  # torchrun's own
_CPU_PROCESSES = 2  # enough to be distributed, few enough for a laptop


@dataclass(frozen=True, slots=True)
class Cluster:
    """World size counts the processes of all nodes; `sources` names the variable behind each field that was told."""

    provider: str
    nodes: int
    node_rank: int | None  # None: given by arrival, at the roll call
    processes_per_node: int
    world_size: int
    primary_address: str | None  # None: this node is the primary, and its address follows from its interface
    primary_port: int
    node_address: str | None
    peers: tuple[str, ...]
    sources: Mapping[str, str]


def make_cluster(environment: Environment, visible_gpus: int, listening_ports: tuple[int, ...] = ()) -> Cluster:
    """Fill in what the environment left open; SettingError where the numbers cannot be right on this machine."""
    sources = dict(environment.sources)
    processes = _processes(environment, visible_gpus, sources)
    nodes = _nodes(environment, processes, sources)
    return Cluster(
        provider=environment.provider,
        nodes=nodes,
        node_rank=environment.node_rank,
        processes_per_node=processes,
        world_size=environment.world_size if environment.rank is not None else nodes * processes,  # type: ignore[arg-type]
        primary_address=environment.primary_address,
        primary_port=environment.primary_port or _port(environment, nodes, listening_ports),
        node_address=environment.node_address,
        peers=environment.peers,
        sources=sources,
    )


def _processes(environment: Environment, visible_gpus: int, sources: dict[str, str]) -> int:
    told = environment.processes_per_node
    if told is not None:
        if visible_gpus and told > visible_gpus and environment.rank is None:
            raise SettingError(
                f"{told} processes per node ({sources.get('processes_per_node', 'told')}), "
                f"but this node has {visible_gpus} visible GPUs",
                fix=f"ask for at most {visible_gpus}, or make more GPUs visible (CUDA_VISIBLE_DEVICES)",
            )
        return told
    if visible_gpus:
        sources["processes_per_node"] = "visible GPUs"
        return visible_gpus
    if environment.local_rank is not None:  # a process that is not told how many are beside it
        sources["processes_per_node"] = "not told, at least LOCAL_RANK + 1"
        return environment.local_rank + 1
    sources["processes_per_node"] = "no GPU"
    return 1 if environment.nodes is None else _CPU_PROCESSES


def _nodes(environment: Environment, processes: int, sources: dict[str, str]) -> int:
    if environment.nodes is not None:
        return environment.nodes
    world_size = environment.world_size or processes
    if world_size % processes and environment.rank is None:
        raise SettingError(
            f"WORLD_SIZE={world_size} counts processes, but is not a multiple of the {processes} that run on a node "
            f"({sources['processes_per_node']})",
            fix="correct WORLD_SIZE, or set TRAIN_NPROC and TRAIN_NODES",
        )
    nodes = -(-world_size // processes)
    sources["nodes"] = "WORLD_SIZE ÷ processes per node"
    if environment.node_rank is not None and environment.node_rank >= nodes:
        raise SettingError(
            f"NODE_RANK={environment.node_rank} is outside 0..{nodes - 1} "
            f"(WORLD_SIZE={world_size} is {nodes} nodes of {processes} processes)",
            fix="give every node its own rank from 0, or correct WORLD_SIZE or TRAIN_NPROC",
        )
    return nodes


def _port(environment: Environment, nodes: int, listening_ports: tuple[int, ...]) -> int:
    # Who decides apart from others must choose as they do, whatever is busy here: every node, and every process that
    # somebody else started (the first of them listens already when the second looks).
    if nodes > 1 or environment.rank is not None:
        return DEFAULT_PORT
    return next(port for port in range(DEFAULT_PORT, 2**16) if port not in listening_ports)
