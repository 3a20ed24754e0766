"""Which interface carries the training, as NCCL and gloo each want it spelt. Pure: Facts in, names and reasons out."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace

from entrypoint.cluster import Cluster
from entrypoint.errors import MachineError, NodesError, SettingError
from entrypoint.facts import Facts, Interface
from entrypoint.inherited import Given, Wanted, check_diagnostics, check_interfaces, names_of, parts, read_given
from entrypoint.interfaces import Candidate, Candidates, candidates, family, leads, listed, plain, unusable
from entrypoint.measured import Measurements
from entrypoint.rdma import NO_RDMA, Rdma, choose_rdma, rdma_settings
from entrypoint.reasons import Finding, Setting
from entrypoint.values import is_loopback

_MOST_RAILS = 16  # MAX_IFS of NCCL, src/transport/net_socket.cc
_MANY_SOCKETS_MBIT = 100_000
_TUNED_BY_NCCL = ("0x1d0f", "0x1ae0")  # PCI vendors Amazon and Google


@dataclass(frozen=True, slots=True)
class Network:
    """The backend and the interfaces for it; `rejected` says of each other interface why it is not one of them."""

    backend: str
    backend_reason: str
    interfaces: tuple[str, ...]
    reason: str
    address: str | None
    rejected: tuple[tuple[str, str], ...]
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...]
    rdma: Rdma = NO_RDMA
    host_id: str | None = None  # NCCL_HOSTID from outside


def choose_network(
    cluster: Cluster,
    facts: Facts,
    own: Mapping[str, str],
    *,
    gpus: int,
    hint: str | None,
    insisted: bool = False,
    must_be_known: bool = True,
    measured: Measurements | None = None,
) -> Network:
    """The network of this node.

    `own` are the NCCL_* and GLOO_* variables that came from outside; `hint` is an interface named by the platform,
    or, if `insisted`, by TRAIN_INTERFACE. `measured` is what the roll call found, and then decides.

    MachineError where a node of several has no interface for the others, if it must be known: not for a process that
    somebody else started. NodesError where none was measured to reach all of them.
    """
    backend, why = ("nccl", f"{gpus} visible GPUs") if gpus else ("gloo", "no visible GPU")
    given = read_given(own, facts)
    if _is_here(cluster) and not insisted:
        return _one_machine(backend, why, facts, given)
    rdma = choose_rdma(facts, given.values) if gpus else NO_RDMA
    found = candidates(facts, cluster, None if insisted else hint)
    try:
        if insisted and hint is not None:
            choice = _insisted(hint, cluster, facts, measured)
        elif measured is not None:
            choice = _fastest(found, measured, most=1 if rdma.hcas else _MOST_RAILS)
        else:
            choice = _leading(found, cluster, facts)
    except MachineError as error:
        if must_be_known:
            raise
        return Network(backend, why, (), "as the libraries choose: " + error.problem, None, found.rejected, (), ())
    settings, findings = _settings(choice, rdma, cluster, facts, given, measured)
    rejected = _rejected(found, choice, measured)
    host_id = given.values.get("NCCL_HOSTID")
    return Network(
        backend, why, choice.names, choice.reason, choice.address, rejected, settings, findings, rdma, host_id
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """The interfaces that carry data. Several: rails in the order that all nodes use, or what a person insists on."""

    interfaces: tuple[Interface, ...]
    address: str | None
    reason: str
    insisted: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(interface.name for interface in self.interfaces)


def _is_here(cluster: Cluster) -> bool:
    """Whether all processes run on this machine: one node, or several that were let meet on loopback for a test."""
    return cluster.nodes == 1 or (cluster.primary_address is not None and is_loopback(cluster.primary_address))


def _one_machine(backend: str, why: str, facts: Facts, given: Given) -> Network:
    findings = tuple(check_diagnostics(given))
    names = tuple(parts(given.values.get("GLOO_SOCKET_IFNAME", "")))
    if names and set(names) <= set(names_of(facts)):
        return Network(backend, why, names, "GLOO_SOCKET_IFNAME as given", None, (), (), findings)
    loopback = tuple(interface.name for interface in facts.interfaces if interface.kind == "loopback")[:1]
    reason = "one machine: gloo needs no name that resolves, NCCL needs no interface"
    settings = tuple(Setting("GLOO_SOCKET_IFNAME", name, reason) for name in loopback)
    return Network(backend, why, loopback, reason, "127.0.0.1", (), settings, findings)


def _insisted(hint: str, cluster: Cluster, facts: Facts, measured: Measurements | None) -> _Choice:
    by_name = {interface.name: interface for interface in facts.interfaces}
    names = [name.strip() for name in hint.split(",") if name.strip()]
    if missing := [name for name in names if name not in by_name]:
        raise SettingError(
            f"TRAIN_INTERFACE={hint!r}: {', '.join(missing)} is not here (there are {listed(facts.interfaces)})",
            fix="name interfaces of this node, or unset it",
        )
    for name in names:
        _refuse_unable(by_name[name], cluster, facts)
        one = measured.of(name) if measured else None
        if one is not None and not one.carries:
            raise SettingError(
                f"TRAIN_INTERFACE={hint!r}: {name} {one.text}", fix="name an interface that reaches all, or unset it"
            )
    chosen = tuple(by_name[name] for name in names)
    return _Choice(chosen, _first_address(chosen[0]), "named by TRAIN_INTERFACE", insisted=True)


def _refuse_unable(interface: Interface, cluster: Cluster, facts: Facts) -> None:
    """A person's insisting can make a tunnel work or a bridge, but not loopback among machines, nor a dead link."""
    leads_nowhere = interface.kind == "loopback" and not _is_here(cluster)
    if leads_nowhere or not interface.up or not (plain(interface) or interface.kind == "loopback"):
        raise SettingError(
            f"TRAIN_INTERFACE: {interface.name} cannot reach other nodes ({unusable(interface, facts)})",
            fix="name an interface with an address on the cluster network, or unset it",
        )


def _fastest(found: Candidates, measured: Measurements, *, most: int) -> _Choice:
    """What was measured fastest toward all peers: rails that every node has, else this node's fastest alone.

    NCCL spreads its channels evenly, so that the slowest of n rails sets the pace of all: n times its speed is what
    the n fastest carry, and the best n is taken.
    """
    able = {one.name: one for one in found.usable if (m := measured.of(one.name)) is not None and m.carries}
    if not able:
        raise NodesError(_nothing_reaches(measured), fix="open the cluster network between all nodes, on all TCP ports")
    by_network = {one.network: one for one in able.values()}
    rails = [rail for rail in measured.rails if rail.network in by_network][:most]
    if rails:
        count = max(range(1, len(rails) + 1), key=lambda n: (n * (rails[n - 1].mbit_per_second or 0), -n))
        chosen = [by_network[rail.network] for rail in rails[:count]]
        told = f"{count} rails that all nodes have" if count > 1 else "fastest of what reaches all nodes"
    else:
        order = list(able)
        chosen = [max(able.values(), key=lambda one: (_speed(measured, one.name), -order.index(one.name)))]
        told = "fastest of what reaches all nodes"
    slowest = min(_speed(measured, one.name) for one in chosen)
    reason = f"{told}, measured{f': {slowest} Mbit/s' if slowest else ''}{' each' if len(chosen) > 1 else ''}"
    return _Choice(tuple(one.interface for one in chosen), chosen[0].address, reason)


def _nothing_reaches(measured: Measurements) -> str:
    tried = "; ".join(f"{one.interface} {one.text}" for one in measured.interfaces) or "no interface could be tried"
    return f"no interface of this node reaches all others: {tried}"


def _speed(measured: Measurements, name: str) -> int:
    one = measured.of(name)
    return (one.mbit_per_second if one else None) or 0


def _leading(found: Candidates, cluster: Cluster, facts: Facts) -> _Choice:
    """Without a measurement: the interface that is known to lead to the primary, or the only one that can."""
    detour = _detour(cluster, facts)
    first: Candidate | None = found.usable[0] if found.usable else None
    if first is not None and first.leads:
        return _Choice((first.interface,), first.address, first.reason)
    if first is not None and len(found.usable) == 1 and detour is None:
        return _Choice((first.interface,), first.address, "the only interface that can reach other nodes")
    raise MachineError(
        f"{cluster.nodes} nodes, but no interface here is known to lead to {cluster.primary_address or 'the others'}"
        f"{detour or ''} (there are {listed(facts.interfaces)})",
        fix="name it with TRAIN_INTERFACE, or correct the primary's address (TRAIN_PRIMARY)",
    )


def _detour(cluster: Cluster, facts: Facts) -> str | None:
    """What is wrong with the interface that the route to the primary takes; None: no route is known."""
    for address, _ in leads(facts, cluster):
        for interface in facts.interfaces:
            if any(each.startswith(f"{address}/") for each in interface.addresses):
                why = unusable(interface, facts) or "by a link-local address"
                return f": the route takes {interface.name} ({why})"
    return None


def _rejected(found: Candidates, choice: _Choice, measured: Measurements | None) -> tuple[tuple[str, str], ...]:
    rejected = dict(found.rejected)
    for one in found.usable:
        said = measured.of(one.name) if measured else None
        rejected[one.name] = said.text if said else "not the way to the primary"
    return tuple((name, why) for name, why in rejected.items() if name not in choice.names)


def _settings(
    choice: _Choice, rdma: Rdma, cluster: Cluster, facts: Facts, given: Given, measured: Measurements | None
) -> tuple[tuple[Setting, ...], tuple[Finding, ...]]:
    # NCCL matches by prefix, so "ens1" would also take ens10; "=" asks for whole names (NVIDIA/nccl-tests#9).
    wanted = (
        Wanted(Setting("NCCL_SOCKET_IFNAME", "=" + ",".join(choice.names), choice.reason), choice.names),
        Wanted(Setting("GLOO_SOCKET_IFNAME", ",".join(choice.names), choice.reason), choice.names),
        Wanted(Setting("TP_SOCKET_IFNAME", choice.names[0], choice.reason), choice.names[:1]),
    )
    settings: list[Setting] = []
    findings: list[Finding] = []
    for one in wanted:
        set_here, said = check_interfaces(replace(one, insisted=choice.insisted), given, facts, measured)
        settings += set_here
        findings += said
    ours = any(setting.name == "NCCL_SOCKET_IFNAME" for setting in settings)
    family_settings, said = _family(choice, cluster, given) if ours else ([], [])
    rdma_set, rdma_said = rdma_settings(rdma, given.values, facts)
    threads = _threads(choice, given) if ours and rdma is not NO_RDMA and not rdma.hcas else []
    settings += [*family_settings, *rdma_set, *threads]
    findings += [*said, *rdma_said, *check_diagnostics(given)]
    return tuple(settings), tuple(findings)


def _family(choice: _Choice, cluster: Cluster, given: Given) -> tuple[list[Setting], list[Finding]]:
    """NCCL takes IPv4 where an interface has it, and else anything but ::1, so fe80:: too (pytorch#50575)."""
    versions = [{ipaddress.ip_address(address).version for address in plain(one)} for one in choice.interfaces]
    name = "NCCL_SOCKET_FAMILY"
    if all(4 in each for each in versions) and not (family(cluster) == 6 and all(6 in each for each in versions)):
        value, reason = "AF_INET", f"{choice.names[0]} has both families, and the cluster meets over IPv4"
        needed = any(6 in each for each in versions)
    else:
        without = next((one for one, each in zip(choice.names, versions, strict=True) if 4 not in each), None)
        value = "AF_INET6"
        reason = f"{without} has no IPv4 address" if without else f"the primary's address is {cluster.primary_address}"
        needed = True
    said = given.values.get(name)
    if said is None:
        return ([Setting(name, value, reason)] if needed else []), []
    if said == value:
        return [], []
    if any((4 if said == "AF_INET" else 6) not in each for each in versions):
        text = f"{given.quoted(name)} finds no address on {','.join(choice.names)}; replaced by {value}"
        return [Setting(name, value, reason)], [Finding("warn", text, f"unset {name}")]
    return [], [
        Finding("warn", f"{given.quoted(name)} is yours and wins: the plan would take {value}", f"unset {name}")
    ]


def _threads(choice: _Choice, given: Given) -> list[Setting]:
    """Sockets for links that one TCP stream cannot fill; NCCL has numbers of its own for the NICs of two clouds."""
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    total = sum(interface.mbit_per_second or 0 for interface in choice.interfaces)
    known = any(interface.vendor in _TUNED_BY_NCCL for interface in choice.interfaces)
    if total < _MANY_SOCKETS_MBIT or known or any(name in given.values for name in names):
        return []
    reason = f"{','.join(choice.names)} is {total // 1000} Gbit/s, more than one TCP stream carries"
    return [Setting(name, "4", reason) for name in names]


def _first_address(interface: Interface) -> str | None:
    return next(iter(sorted(plain(interface), key=lambda a: ipaddress.ip_address(a).version)), None)
