"""What the cloud said: variables (and the few files that platforms write) → Environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """One node's place in the cluster, as its platform told it; None = not told, decided later from facts."""

    provider: str  # the row that was recognised: "runpod-cluster", "slurm", … or "none"
    nodes: int | None = 1  # None: world_size was given and processes_per_node is still to be seen
    min_nodes: int | None = None  # elastic contracts: fewer nodes may do
    node_rank: int | None = 0  # None: by arrival
    processes_per_node: int | None = None
    world_size: int | None = None  # processes over all nodes, where the platform says it
    primary_address: str | None = None  # None: this node is the primary and its own address is not told
    primary_port: int | None = None
    node_address: str | None = None
    peers: tuple[str, ...] = ()  # addresses of all nodes in rank order
    interface_hint: str | None = None
    rank: int | None = None  # set with local_rank: a finished process contract, one process of many
    local_rank: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)  # field → "NODE_RANK=1", the variable that decided it


def read_environment(variables: Mapping[str, str], root: Path = Path("/")) -> Environment:
    """The cluster as this node's variables describe it; SettingError where they contradict each other."""
    raise NotImplementedError
