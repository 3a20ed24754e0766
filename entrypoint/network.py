"""Which interface carries the training, as NCCL and gloo each want it spelt. Pure: Facts in, names and reasons out."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from entrypoint.cluster import Cluster
from entrypoint.errors import MachineError, NodesError, SettingError
from entrypoint.facts import Facts, Interface
from entrypoint.interfaces import Candidate, Candidates, candidates, leads, listed, plain, unusable
from entrypoint.measured import Measurements
from entrypoint.reasons import Finding, Setting
from entrypoint.values import is_loopback

_MOST_RAILS = 16  # MAX_IFS of NCCL, src/transport/net_socket.cc


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
    if _is_here(cluster) and not insisted:
        return _one_machine(backend, why, facts, own)
    found = candidates(facts, cluster, None if insisted else hint)
    try:
        if insisted and hint is not None:
            choice = _insisted(hint, cluster, facts, measured)
        elif measured is not None:
            choice = _fastest(found, measured)
        else:
            choice = _leading(found, cluster, facts)
    except MachineError as error:
        if must_be_known:
            raise
        return Network(backend, why, (), "as the libraries choose: " + error.problem, None, found.rejected, (), ())
    settings, findings = _settings(choice, facts, own)
    rejected = _rejected(found, choice, measured)
    return Network(backend, why, choice.names, choice.reason, choice.address, rejected, settings, findings)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The interfaces that carry data, and those of them for gloo, which pairs them up by their place in the list."""

    interfaces: tuple[Interface, ...]
    address: str | None
    reason: str
    pairs_up: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(interface.name for interface in self.interfaces)

    @property
    def for_gloo(self) -> tuple[str, ...]:
        return self.names if self.pairs_up else self.names[:1]


def _is_here(cluster: Cluster) -> bool:
    """Whether all processes run on this machine: one node, or several that were let meet on loopback for a test."""
    return cluster.nodes == 1 or (cluster.primary_address is not None and is_loopback(cluster.primary_address))


def _one_machine(backend: str, why: str, facts: Facts, own: Mapping[str, str]) -> Network:
    given = own.get("GLOO_SOCKET_IFNAME", "").strip()
    if given and set(_parts(given)) <= set(_names(facts)):
        return Network(backend, why, tuple(_parts(given)), "GLOO_SOCKET_IFNAME as given", None, (), (), ())
    loopback = tuple(interface.name for interface in facts.interfaces if interface.kind == "loopback")[:1]
    reason = "one machine: gloo needs no name that resolves, NCCL needs no interface"
    settings = tuple(Setting("GLOO_SOCKET_IFNAME", name, reason) for name in loopback)
    return Network(backend, why, loopback, reason, "127.0.0.1", (), settings, ())


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
    return _Choice(chosen, _first_address(chosen[0]), "named by TRAIN_INTERFACE")


def _refuse_unable(interface: Interface, cluster: Cluster, facts: Facts) -> None:
    """A person's insisting can make a tunnel work or a bridge, but not loopback among machines, nor no address."""
    leads_nowhere = interface.kind == "loopback" and not _is_here(cluster)
    if leads_nowhere or not (plain(interface) or interface.kind == "loopback"):
        raise SettingError(
            f"TRAIN_INTERFACE: {interface.name} cannot reach other nodes ({unusable(interface, facts)})",
            fix="name an interface with an address on the cluster network, or unset it",
        )


def _fastest(found: Candidates, measured: Measurements) -> _Choice:
    """What was measured fastest toward all peers: rails that every node has, else this node's fastest alone.

    NCCL spreads its channels evenly, so that the slowest of n rails sets the pace of all: n times its speed is what
    the n fastest carry, and the best n is taken.
    """
    able = {one.name: one for one in found.usable if (m := measured.of(one.name)) is not None and m.carries}
    if not able:
        raise NodesError(_nothing_reaches(measured), fix="open the cluster network between all nodes, on all TCP ports")
    by_network = {one.network: one for one in able.values()}
    rails = [rail for rail in measured.rails if rail.network in by_network][:_MOST_RAILS]
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
        f"{cluster.nodes} nodes, but no interface here is known to lead to {cluster.primary_address}"
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


def _settings(choice: _Choice, facts: Facts, own: Mapping[str, str]) -> tuple[tuple[Setting, ...], tuple[Finding, ...]]:
    # NCCL matches by prefix, so "ens1" would also take ens10; "=" asks for whole names (NVIDIA/nccl-tests#9).
    wanted = {"NCCL_SOCKET_IFNAME": "=" + ",".join(choice.names), "GLOO_SOCKET_IFNAME": ",".join(choice.for_gloo)}
    names, reason = choice.names, choice.reason
    settings: list[Setting] = []
    findings: list[Finding] = []
    for name, value in wanted.items():
        given = own.get(name, "").strip()
        if not given:
            settings.append(Setting(name, value, reason))
        elif wrong := _cannot_work(name, given, facts):
            settings.append(Setting(name, value, reason))
            findings.append(Finding("warn", f"{name}={given} {wrong}; replaced by {value}", f"unset {name}"))
        else:
            findings += _differs(name, given, value, names, facts)
    if {ipaddress.ip_address(address).version for address in plain(choice.interfaces[0])} == {6}:
        settings.append(Setting("NCCL_SOCKET_FAMILY", "AF_INET6", f"{names[0]} has no IPv4 address"))
    if facts.rdma and not any(port.usable for port in facts.rdma) and not own.get("NCCL_IB_DISABLE"):
        # Listed but not to be opened, NCCL would fail or crawl instead of taking sockets (NVIDIA/nccl#451).
        settings.append(Setting("NCCL_IB_DISABLE", "1", f"{facts.rdma[0].device} is listed but cannot be opened here"))
    return tuple(settings), tuple(findings)


def _cannot_work(name: str, given: str, facts: Facts) -> str | None:
    """Why a value that came from outside would break a run over several nodes; None: it may stand."""
    here = matched(given, _names(facts), exact=name.startswith("GLOO"))
    if not here:
        return f"matches no interface here (there are {listed(facts.interfaces)})"
    if loopback := [i.name for i in facts.interfaces if i.name in here and i.kind == "loopback"]:
        return f"lets {loopback[0]} be taken, which leads to no other node"
    missing = _missing(given, facts)
    if missing and name.startswith("GLOO"):  # NCCL passes over a name that is not here, gloo stops
        return f"names {', '.join(missing)}, which is not here"
    return None


def _differs(name: str, given: str, value: str, names: Sequence[str], facts: Facts) -> Iterator[Finding]:
    """What a person should know of a value from outside that works."""
    here = matched(given, _names(facts), exact=name.startswith("GLOO"))
    if missing := _missing(given, facts):
        yield Finding("warn", f"{name}={given} names {', '.join(missing)}, which is not here", f"correct {name}")
    if set(here) != set(names):
        text = f"{name}={given} is yours and wins: it selects {', '.join(here)}; the plan would take {value}"
        yield Finding("warn", text, f"unset {name}, or insist with TRAIN_INTERFACE")


def _missing(given: str, facts: Facts) -> list[str]:
    """Names in the list that select nothing; of a list of exclusions that is no harm."""
    sign = "=" if given.startswith("=") else ""
    return [part for part in _parts(given) if not given.startswith("^") and not matched(sign + part, _names(facts))]


def _names(facts: Facts) -> list[str]:
    return [interface.name for interface in facts.interfaces]


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.removeprefix("^").removeprefix("=").split(",") if part.strip()]


def matched(value: str, names: Sequence[str], *, exact: bool = False) -> list[str]:
    """Interfaces that a value of NCCL_SOCKET_IFNAME selects; `exact`: gloo's rule, whole names and no signs.

    NCCL reads `^` (not these) and `=` (whole names) once, at the start of the list (nccl, src/misc/socket.cc).
    Selecting by exclusion replaces NCCL's own exclusion of lo and docker (horovod#700).
    """
    if exact:
        return [name for name in names if name in value.split(",")]
    exclude, text = value.startswith("^"), value.removeprefix("^")
    wanted = _parts(value)

    def selects(name: str) -> bool:
        return name in wanted if text.startswith("=") else name.startswith(tuple(wanted))

    return [name for name in names if wanted and selects(name) != exclude]


def _first_address(interface: Interface) -> str | None:
    return next(iter(sorted(plain(interface), key=lambda a: ipaddress.ip_address(a).version)), None)
