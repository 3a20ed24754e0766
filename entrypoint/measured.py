"""What a roll call measured over each interface, bound to it, and which networks all nodes have in common."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """One interface of one node toward its peers: all others, or those at ring distances 1, 2, 4, 8 …"""

    interface: str
    network: str  # of the address that was tried: "10.65.1.0/24"
    reached: tuple[int, ...]  # node ranks
    missed: tuple[int, ...]  # asked and not reached
    large_passes: bool | None  # a payload larger than the MTU arrived at all that were reached; None: not tried
    mbit_per_second: int | None  # counted by the receiver, toward the next neighbour; None: no sample
    detail: str = ""  # of the first failure: "timed out after 2 s"

    @property
    def carries(self) -> bool:
        """Whether training can run over it."""
        return bool(self.reached) and not self.missed and self.large_passes is not False

    @property
    def text(self) -> str:
        """One sentence for the plan."""
        detail = f" ({self.detail})" if self.detail else ""
        if self.missed:
            return f"does not reach {_nodes(self.missed)}{detail}"
        if self.large_passes is False:
            return f"connects, but large packets do not arrive{detail}"
        if not self.reached:
            return f"was not tried{detail}"
        speed = f", {self.mbit_per_second} Mbit/s" if self.mbit_per_second is not None else ""
        peers = f"all {len(self.reached)} peers that were tried" if len(self.reached) > 1 else "its peer"
        return f"reaches {peers}{speed}"


@dataclass(frozen=True, slots=True)
class Rail:
    """A network that every node has an interface on, and over which every node reaches its peers."""

    network: str
    mbit_per_second: int | None  # of the slowest node that has a sample; None: none has


@dataclass(frozen=True, slots=True)
class Measurements:
    """What one node knows after the roll call: its own interfaces, and the rails in the order that all nodes use."""

    interfaces: tuple[Measured, ...]
    rails: tuple[Rail, ...] = ()

    def of(self, interface: str) -> Measured | None:
        """The measurement of an interface; None: it was not tried."""
        return next((one for one in self.interfaces if one.interface == interface), None)


def common_rails(nodes: Mapping[int, Sequence[Measured]]) -> tuple[Rail, ...]:
    """The rails of a cluster, fastest first, from what each node rank measured; the same input for all gives one order.

    None where the nodes' networks have nothing in common, as when each node is routed from a network of its own.
    """
    carrying = [{one.network: one for one in measured if one.carries} for measured in nodes.values()]
    shared = set.intersection(*(set(one) for one in carrying)) if carrying else set()
    rails = [Rail(network, _slowest(one[network] for one in carrying)) for network in shared]
    return tuple(sorted(rails, key=lambda rail: (-(rail.mbit_per_second or 0), rail.network)))


def _slowest(measured: Iterable[Measured]) -> int | None:
    # A busy node may lose its sample: what the others saw counts, or a fast rail would come behind every slow one.
    return min((one.mbit_per_second for one in measured if one.mbit_per_second is not None), default=None)


def _nodes(ranks: Sequence[int]) -> str:
    shown = ", ".join(f"node {rank}" for rank in ranks[:8])
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
