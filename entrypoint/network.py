"""Which interface carries the training, as NCCL and gloo each want it spelt. Pure: Facts in, names and reasons out."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from entrypoint.cluster import Cluster
from entrypoint.errors import MachineError, SettingError
from entrypoint.facts import Facts, Interface
from entrypoint.reasons import Finding, Setting
from entrypoint.values import is_loopback

_NEVER = ("loopback", "bridge", "tunnel")  # the same address on every host, or a detour over the internet


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
) -> Network:
    """The network of this node.

    `own` are the NCCL_* and GLOO_* variables that came from outside; `hint` is an interface named by the platform,
    or, if `insisted`, by TRAIN_INTERFACE. MachineError where a node of several has no interface for the others, if it
    must be known: not for a process that somebody else started.
    """
    backend, why = ("nccl", f"{gpus} visible GPUs") if gpus else ("gloo", "no visible GPU")
    if _is_here(cluster) and not insisted:
        return _one_machine(backend, why, facts, own)
    try:
        chosen, reason = _choose(cluster, facts, hint, insisted)
    except MachineError as error:
        if must_be_known:
            raise
        return Network(backend, why, (), "as the libraries choose: " + error.problem, None, (), (), ())
    names = tuple(interface.name for interface in chosen)
    settings, findings = _settings(names, reason, chosen, facts, own)
    return Network(backend, why, names, reason, _first_address(chosen[0]), _rejected(facts, names), settings, findings)


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


def _choose(cluster: Cluster, facts: Facts, hint: str | None, insisted: bool) -> tuple[tuple[Interface, ...], str]:
    by_name = {interface.name: interface for interface in facts.interfaces}
    if insisted and hint is not None:
        names = [name.strip() for name in hint.split(",") if name.strip()]
        if missing := [name for name in names if name not in by_name]:
            raise SettingError(
                f"TRAIN_INTERFACE={hint!r}: {', '.join(missing)} is not here (there are {_listed(facts.interfaces)})",
                fix="name interfaces of this node, or unset it",
            )
        return tuple(_able(by_name[name], cluster) for name in names), "named by TRAIN_INTERFACE"
    for address, reason in _leads(cluster, facts):
        for interface in facts.interfaces:
            if address in _plain(interface) and unusable(interface) is None:
                return (interface,), reason
    if hint in by_name and unusable(by_name[hint]) is None:
        return (by_name[hint],), "named by the platform"
    candidates = tuple(interface for interface in facts.interfaces if unusable(interface) is None)
    detour = _detour(cluster, facts)
    if len(candidates) == 1 and detour is None:
        return candidates, "the only interface that can reach other nodes"
    raise MachineError(
        f"{cluster.nodes} nodes, but no interface here is known to lead to {cluster.primary_address}"
        f"{detour or ''} (there are {_listed(facts.interfaces)})",
        fix="name it with TRAIN_INTERFACE, or correct the primary's address (TRAIN_PRIMARY)",
    )


def _able(interface: Interface, cluster: Cluster) -> Interface:
    """The interface, where a person's insisting can make it work: not loopback among machines, not without address."""
    leads_nowhere = interface.kind == "loopback" and not _is_here(cluster)
    if leads_nowhere or not (_plain(interface) or interface.kind == "loopback"):
        raise SettingError(
            f"TRAIN_INTERFACE: {interface.name} cannot reach other nodes ({unusable(interface)})",
            fix="name an interface with an address on the cluster network, or unset it",
        )
    return interface


def _detour(cluster: Cluster, facts: Facts) -> str | None:
    """What is wrong with the interface that the route to the primary takes; None: no route is known."""
    for address, _ in _leads(cluster, facts):
        for interface in facts.interfaces:
            if any(each.startswith(f"{address}/") for each in interface.addresses):
                why = unusable(interface) or "by a link-local address"
                return f": the route takes {interface.name} ({why})"
    return None


def _leads(cluster: Cluster, facts: Facts) -> list[tuple[str, str]]:
    """Own addresses that tell the interface, the surest first, with the reason."""
    leads = []
    if cluster.node_address:
        leads.append((cluster.node_address, f"owns this node's address {cluster.node_address}"))
    if cluster.primary_address:
        leads.append((cluster.primary_address, f"owns the primary's address {cluster.primary_address}"))
    for target, source in facts.routes:
        if target == cluster.primary_address:
            leads.append((source, f"the route to the primary {target} leaves from {source}"))
    return leads


def unusable(interface: Interface) -> str | None:
    """Why an interface cannot carry traffic between nodes; None: it can."""
    if interface.kind in _NEVER:
        return f"{interface.kind}: not a way to other nodes"
    if not interface.up:
        return "down"
    if interface.master is not None:
        return f"part of {interface.master}"
    if not _plain(interface):
        return "no address but a link-local one"
    return None


def _rejected(facts: Facts, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    others = [interface for interface in facts.interfaces if interface.name not in names]
    return tuple((i.name, unusable(i) or "not the way to the primary") for i in others)


def _settings(
    names: tuple[str, ...], reason: str, chosen: Sequence[Interface], facts: Facts, own: Mapping[str, str]
) -> tuple[tuple[Setting, ...], tuple[Finding, ...]]:
    # NCCL matches by prefix, so "ens1" would also take ens10; "=" asks for whole names (NVIDIA/nccl-tests#9).
    wanted = {"NCCL_SOCKET_IFNAME": "=" + ",".join(names), "GLOO_SOCKET_IFNAME": ",".join(names)}
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
    if {ipaddress.ip_address(address).version for address in _plain(chosen[0])} == {6}:
        settings.append(Setting("NCCL_SOCKET_FAMILY", "AF_INET6", f"{names[0]} has no IPv4 address"))
    if facts.rdma and not any(port.usable for port in facts.rdma) and not own.get("NCCL_IB_DISABLE"):
        # Listed but not to be opened, NCCL would fail or crawl instead of taking sockets (NVIDIA/nccl#451).
        settings.append(Setting("NCCL_IB_DISABLE", "1", f"{facts.rdma[0].device} is listed but cannot be opened here"))
    return tuple(settings), tuple(findings)


def _cannot_work(name: str, given: str, facts: Facts) -> str | None:
    """Why a value that came from outside would break a run over several nodes; None: it may stand."""
    here = matched(given, _names(facts), exact=name.startswith("GLOO"))
    if not here:
        return f"matches no interface here (there are {_listed(facts.interfaces)})"
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


def _plain(interface: Interface) -> list[str]:
    """Addresses without their prefix length, link-local and loopback ones left out."""
    plain = [address.split("/")[0].split("%")[0] for address in interface.addresses]
    return [a for a in plain if not (ipaddress.ip_address(a).is_link_local or ipaddress.ip_address(a).is_loopback)]


def _first_address(interface: Interface) -> str | None:
    return next(iter(sorted(_plain(interface), key=lambda a: ipaddress.ip_address(a).version)), None)


def _listed(interfaces: Sequence[Interface]) -> str:
    return ", ".join(f"{i.name} {i.addresses[0] if i.addresses else 'without address'}" for i in interfaces) or "none"
