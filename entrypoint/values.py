"""One value at a time: text as clouds, templates and people write it → number, address, port, list of nodes."""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from entrypoint.errors import SettingError

LIMIT = 1_000_000  # more nodes or processes than this is a typing error, not a cluster

_NODE_LIST_PART = r"(?:[A-Za-z0-9_.-]|\[[0-9,-]+\])+"
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and, where it was written behind it, a port."""

    host: str
    port: int | None = None


def endpoint(address: str, port: int) -> str:
    """`host:port` as launchers take it; brackets belong in this form only (pytorch#107563).

    >>> endpoint("2001:db8::10", 29500)
    '[2001:db8::10]:29500'
    """
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def clean(text: str) -> str:
    """The text without what forms, env files and Windows editors leave around it: blanks, line ends, quotes."""
    text = text.strip()
    while len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    return "" if text in ('"', "'") else text


def shown(value: object) -> str:
    """A value on one line, short enough to read."""
    text = str(value)
    line = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return line if len(line) <= 100 else f"{line[:80]}… ({len(text)} characters)"


def quoted(name: str, value: object) -> str:
    """`NAME=value`, as messages quote what was given."""
    return f"{shown(name)}={shown(value)}"


def parse_count(name: str, text: str, *, least: int = 0) -> int:
    """A plain decimal number; `int()` alone would also take "-1", "1_000" and full-width digits."""
    number = int(text) if re.fullmatch("[0-9]{1,12}", text) else None
    if number is None or not least <= number <= LIMIT:
        raise SettingError(
            f"{quoted(name, text)} is not a whole number in {least}..{LIMIT}",
            fix=f"set {name} to a plain number such as {max(least, 1)}",
        )
    return number


def parse_port(name: str, text: str) -> int:
    """A TCP port."""
    port = int(text) if re.fullmatch("[0-9]{1,12}", text) else 0
    if not 1 <= port <= 65535:
        raise SettingError(f"{quoted(name, text)} is not a port in 1..65535", fix=f"set {name} to a free port: 29500")
    return port


def parse_address(name: str, text: str) -> str:
    """An IP address or host name, without brackets, prefix length or port.

    >>> parse_address("PRIMARY_ADDR", "10.65.0.2/24")
    '10.65.0.2'
    """
    return parse_endpoint(name, text).host


def parse_endpoint(name: str, text: str) -> Endpoint:
    """`host`, `host:port`, `[v6]:port` or bare v6, each with or without a prefix length; port 0 is no port."""
    host, port = _split_port(text)
    address, slash, prefix = host.partition("/")
    # Runpod's cluster images strip a prefix length from PRIMARY_ADDR and NODE_ADDR: it does arrive.
    prefix_is_sound = not slash or (re.fullmatch("[0-9]{1,3}", prefix) is not None and int(prefix) <= 128)
    port_is_sound = re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= 65535
    if not (prefix_is_sound and port_is_sound and _is_host(address)):
        raise SettingError(
            f"{quoted(name, text)} is not an address or host name",
            fix=f"set {name} to the address of a node, such as 10.65.0.2 or, where a port belongs, 10.65.0.2:29500",
        )
    return Endpoint(address, int(port) or None)


def _split_port(text: str) -> tuple[str, str]:
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](/[0-9]+)?(?::(.*))?", text)
    if bracketed:
        host, prefix, port = bracketed.groups(default="")
        return host + prefix, port or "0"
    if text.count(":") > 1:  # bare IPv6: its last group is never a port
        return text, "0"
    host, colon, port = text.partition(":")
    return host, port if colon else "0"


def _is_host(text: str) -> bool:
    if _ip(text) is not None:
        return text.isprintable() and " " not in text  # a zone (fe80::1%eth0) may hold anything
    last_label = text.rstrip(".").rpartition(".")[2].lower()
    # The resolver reads "10.65.2", "2" and "0x7f1" as IPv4 addresses that nobody meant.
    return _HOST_NAME.fullmatch(text) is not None and re.fullmatch("[0-9]+|0x[0-9a-f]+", last_label) is None


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_ip(address: str) -> bool:
    """Whether this is a literal address, not a name."""
    return _ip(address) is not None


def is_loopback(address: str) -> bool:
    """Whether every node would find itself under this address."""
    ip = _ip(address)
    if ip is None:
        name = address.lower().rstrip(".")
        return name in _LOOPBACK_NAMES or name.endswith(".localhost")
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    return bool(mapped.is_loopback or mapped.is_unspecified)


def comparable(value: object) -> object:
    """What must be equal where two variables are said to hold the same: addresses differ in spelling only."""
    return (_ip(value) or value.lower().rstrip(".")) if isinstance(value, str) else value


def parse_interfaces(name: str, text: str) -> str:
    """Kernel names of network interfaces, comma-separated; NCCL's leading "=" (whole names) is understood."""
    names = [part.strip() for part in text.removeprefix("=").split(",")]
    if not all(re.fullmatch(r"[A-Za-z0-9_.:@-]{1,15}", part) for part in names):
        raise SettingError(
            f"{quoted(name, text)} is not a list of interface names",
            fix=f"set {name} to names as `ip address` shows them, such as ens1 or ens1,ens2",
        )
    return ",".join(names)


def parse_hosts(name: str, text: str) -> tuple[str, ...]:
    """A list by lines, blanks or commas; an empty last line is no node."""
    hosts = tuple(parse_address(name, part) for part in re.split(r"[\s,]+", text) if part)
    if not hosts:
        raise SettingError(f"{quoted(name, text)} names no node", fix=f"unset {name}, or list the nodes in it")
    return hosts


def parse_json(name: str, text: str) -> Any:
    """Whatever JSON holds; the caller judges the types."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SettingError(f"{quoted(name, text)} is not JSON", fix=f"give {name} as the platform wrote it") from None


def parse_node_list(name: str, text: str) -> tuple[str, ...]:
    """Slurm's short form of node names, in its order; `scontrol` is rarely inside a container.

    >>> parse_node_list("SLURM_JOB_NODELIST", "gpu[003,007-008],a[1-2]b[01-02]")
    ('gpu003', 'gpu007', 'gpu008', 'a1b01', 'a1b02', 'a2b01', 'a2b02')
    """
    if re.fullmatch(f"{_NODE_LIST_PART}(?:,{_NODE_LIST_PART})*", text):
        parts = [_axes(part) for part in re.findall(_NODE_LIST_PART, text)]
        names = (host for axes in parts if axes for host in map("".join, itertools.product(*axes)))
        hosts = tuple(itertools.islice(names, LIMIT // 10))
        if all(parts) and len(hosts) < LIMIT // 10:
            return hosts
    raise SettingError(
        f"{quoted(name, text)} is not a list of nodes", fix="TRAIN_PRIMARY=host:port names the primary directly"
    )


def _axes(part: str) -> list[list[str]] | None:
    """`a[1-2]b` → [["a"], ["1", "2"], ["b"]]; None where a range makes no sense."""
    pieces = re.split(r"\[([0-9,-]+)\]", part)
    axes = [list(_ranges(piece)) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    return axes if all(axes) else None


def _ranges(text: str) -> Iterator[str]:
    """The numbers of `003,007-009` with their zeros; nothing at all if one of them is malformed or too long."""
    spans = [re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", item) for item in text.split(",")]
    bounds = [(span[1], span[2] or span[1]) for span in spans if span]
    sizes = [int(last) - int(first) + 1 for first, last in bounds]
    if len(bounds) == len(spans) and min(sizes) > 0 and sum(sizes) < LIMIT // 10:
        for first, last in bounds:
            yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))


def parse_task_counts(name: str, text: str) -> tuple[tuple[int, int], ...]:
    """Slurm's tasks per node as (tasks, nodes) runs: `2(x3),1` → ((2, 3), (1, 1))."""
    runs = [re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", item.strip()) for item in text.split(",")]
    counts = tuple((int(run[1]), int(run[2] or 1)) for run in runs if run)
    if len(counts) < len(runs) or not all(tasks and nodes for tasks, nodes in counts):
        raise SettingError(f"{quoted(name, text)} is not a list of task counts", fix="expected a form like 8(x4) or 1")
    return counts
