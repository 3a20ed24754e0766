"""The interfaces of a node that can lead to the others, in order of preference, and why the rest cannot. Pure."""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from entrypoint.cluster import Cluster
from entrypoint.facts import Facts, Interface
from entrypoint.values import is_ip, is_loopback

_NEVER = {"loopback": "leads to no other node", "tunnel": "a tunnel: a detour that encrypts every byte"}
_REAL = ("physical", "bond", "vlan", "infiniband")  # a wire below them; a veth or a vxlan may be a container's only way


@dataclass(frozen=True, slots=True)
class Candidate:
    """A usable interface. `leads`: it is known to lead to the primary, not only able to."""

    interface: Interface
    address: str  # where the others find it; of the primary's family where it has both
    network: str  # of that address: "10.65.0.0/24"
    reason: str
    leads: bool

    @property
    def name(self) -> str:
        return self.interface.name


@dataclass(frozen=True, slots=True)
class Candidates:
    """All interfaces of a node, each on one side, with its reason."""

    usable: tuple[Candidate, ...]  # in order of preference
    rejected: tuple[tuple[str, str], ...]


def candidates(facts: Facts, cluster: Cluster, hint: str | None = None) -> Candidates:
    """What a roll call should try: first what leads to the primary, then what the platform names, then by speed.

    Of several interfaces in one network only the first stays: the kernel sends what goes there through one of them,
    whichever address a socket is bound to (NVIDIA/nccl#1581).
    """
    known: dict[str, str] = {}
    for name, reason in _leading(facts, cluster, hint):
        known.setdefault(name, reason)
    order = list(known)
    wrong = {interface.name: unusable(interface, facts) for interface in facts.interfaces}
    able = [interface for interface in facts.interfaces if wrong[interface.name] is None]
    able.sort(key=lambda one: (order.index(one.name) if one.name in known else len(order), *_merit(one)))
    usable: dict[str, Candidate] = {}
    for interface in able:
        address, network = _reachable_at(interface, cluster)
        if network in usable:
            first = usable[network].name
            wrong[interface.name] = f"in one network with {first}: the kernel sends through one of the two"
        else:
            reason = known.get(interface.name, "able to reach other nodes")
            usable[network] = Candidate(interface, address, network, reason, interface.name in known)
    return Candidates(tuple(usable.values()), tuple((name, why) for name, why in wrong.items() if why))


def unusable(interface: Interface, facts: Facts) -> str | None:
    """Why an interface cannot carry traffic between nodes; None: it can."""
    if interface.kind in _NEVER:
        return _NEVER[interface.kind]
    if not interface.up:
        return "down, or without a carrier"
    if interface.master is not None:
        return f"part of {interface.master}"
    if not plain(interface):
        return "no address but a link-local one" if interface.addresses else "no address"
    if interface.kind == "bridge" and not _has_uplink(interface, facts):
        return "a bridge without a real port: the same address on every host"
    return None


def _has_uplink(bridge: Interface, facts: Facts) -> bool:
    """docker0 and cni0 have containers' ports only; a host that bridges its own port has its address on the bridge."""
    return any(port.master == bridge.name and port.kind in _REAL for port in facts.interfaces)


def leads(facts: Facts, cluster: Cluster) -> list[tuple[str, str]]:
    """Own addresses that tell the interface, the surest first, with the reason."""
    found = []
    if cluster.node_address:
        found.append((cluster.node_address, f"owns this node's address {cluster.node_address}"))
    if cluster.primary_address:
        found.append((cluster.primary_address, f"owns the primary's address {cluster.primary_address}"))
    for target, source in facts.routes:
        # Debian gives a machine's own name to 127.0.1.1: on the primary that says nothing.
        own_name = cluster.node_rank == 0 and is_loopback(source)
        if target == cluster.primary_address and not own_name:
            found.append((source, f"the route to the primary {target} leaves from {source}"))
    return found


def _leading(facts: Facts, cluster: Cluster, hint: str | None) -> Iterator[tuple[str, str]]:
    for address, reason in leads(facts, cluster):
        for interface in facts.interfaces:
            if address in plain(interface):
                yield interface.name, reason
    for name in (hint or "").split(","):
        if name.strip():
            yield name.strip(), "named by the platform"


def _merit(interface: Interface) -> tuple[bool, int, int]:
    """For sorting, best first; what names no speed comes after what does."""
    return interface.kind not in _REAL, -(interface.mbit_per_second or 0), -(interface.mtu or 0)


def plain(interface: Interface) -> list[str]:
    """Addresses without their prefix length, link-local and loopback ones left out."""
    return [str(address.ip) for address in _routable(interface)]


def _routable(interface: Interface) -> list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]:
    all_of_it = [ipaddress.ip_interface(address) for address in interface.addresses]
    return [one for one in all_of_it if not (one.ip.is_link_local or one.ip.is_loopback)]


def _reachable_at(interface: Interface, cluster: Cluster) -> tuple[str, str]:
    """Address and network; the family is the primary's where that is known, else IPv4 where there is one."""
    wanted = family(cluster)
    first = min(_routable(interface), key=lambda one: (one.version != wanted, str(one.ip) != cluster.node_address))
    return str(first.ip), str(first.network)


def family(cluster: Cluster) -> int:
    """4 or 6: the version of the primary's address, 4 where it has a name or is not known."""
    address = cluster.primary_address
    return ipaddress.ip_address(address).version if address and is_ip(address) else 4


def listed(interfaces: Sequence[Interface]) -> str:
    """Names with their first address, for a message."""
    return ", ".join(f"{i.name} {i.addresses[0] if i.addresses else 'without address'}" for i in interfaces) or "none"
