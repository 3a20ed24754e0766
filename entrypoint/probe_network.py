"""Interfaces, RDMA ports and routes: the kernel's calls say what exists, /sys only adds to it."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from entrypoint.facts import FileSetting, Interface, RdmaPort
from entrypoint.probe_machine import Files, Link, Machine, parse_int

_NET, _RDMA, _VERBS = "/sys/class/net", "/sys/class/infiniband", "/sys/class/infiniband_verbs"

# Names of ethtool's drivers and of the DEVTYPE that sysfs gives: two spellings of the same few things.
_KINDS = {
    "bonding": "bond",
    "bond": "bond",
    "bridge": "bridge",
    "veth": "veth",
    "802.1Q VLAN Support": "vlan",
    "vlan": "vlan",
    "tun": "tunnel",
    "wireguard": "tunnel",
    "macvlan": "virtual",
    "ipvlan": "virtual",
    "vxlan": "virtual",
    "geneve": "virtual",
    "dummy": "virtual",
    "ifb": "virtual",
}
# ARPHRD_* of linux/if_arp.h; /sys/class/net/*/type.
_INFINIBAND_TYPE = 32
_TUNNEL_TYPES = (65534, 768, 769, 776, 778, 823)  # none (tun, wireguard), ipip, ip6ip6, sit, gre, ip6gre
# Of the others, a veth and a tunnel say 10000 whatever they carry, and a bridge repeats its ports.
_KINDS_WITH_SPEED = ("physical", "bond", "vlan", "infiniband")


@dataclass(frozen=True, slots=True)
class _Hints:
    """What /sys/class/net says of one interface."""

    devtype: str
    hardware_type: int | None
    vendor: str | None  # of the PCI device below it
    has_device: bool  # a PCI, USB or virtio device below it
    mbit_per_second: int | None
    master: str | None


def read_interfaces(machine: Machine) -> tuple[Interface, ...]:
    """The interfaces of this network namespace in the kernel's order."""
    links = machine.links()
    ours = _sysfs_is_ours(machine.files, links)
    return tuple(_make_interface(link, _read_hints(machine.files, link.name) if ours else None) for link in links)


def _sysfs_is_ours(files: Files, links: tuple[Link, ...]) -> bool:
    # /sys may be another namespace's (the host's, in some containers), with an eth0 that is not this one.
    shown = {name: parse_int(_uevent(files, name).get("IFINDEX")) for name in files.names(_NET)}
    shown.pop("bonding_masters", None)  # a file among the interfaces
    return shown == {link.name: link.index for link in links}


def _uevent(files: Files, name: str) -> dict[str, str]:
    lines = (files.read(f"{_NET}/{name}/uevent") or "").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _read_hints(files: Files, name: str) -> _Hints:
    folder = f"{_NET}/{name}"
    return _Hints(
        devtype=_uevent(files, name).get("DEVTYPE", ""),
        hardware_type=parse_int(files.read(f"{folder}/type")),
        vendor=files.read(f"{folder}/device/vendor"),
        has_device=files.exists(f"{folder}/device"),
        mbit_per_second=parse_int(files.read(f"{folder}/speed")),  # unreadable (EINVAL) or -1: unknown
        master=files.target(f"{folder}/master"),
    )


def _make_interface(link: Link, hints: _Hints | None) -> Interface:
    kind = _kind(link, hints)
    return Interface(
        name=link.name,
        addresses=link.addresses,
        up="up" in link.flags and "running" in link.flags,
        mtu=link.mtu,
        mbit_per_second=_speed(link, hints) if kind in _KINDS_WITH_SPEED else None,
        kind=kind,
        master=hints.master if hints else None,
        vendor=hints.vendor if hints else None,
    )


def _kind(link: Link, hints: _Hints | None) -> str:
    if "loopback" in link.flags:
        return "loopback"
    if link.driver in _KINDS:
        return _KINDS[link.driver]
    if hints is None:
        return "tunnel" if "pointopoint" in link.flags else "unknown"
    if hints.devtype in _KINDS:
        return _KINDS[hints.devtype]
    if hints.hardware_type == _INFINIBAND_TYPE:
        return "infiniband"
    if hints.hardware_type in _TUNNEL_TYPES:
        return "tunnel"
    return "physical" if hints.has_device else "virtual"


def _speed(link: Link, hints: _Hints | None) -> int | None:
    said = (link.mbit_per_second, hints.mbit_per_second if hints else None)
    return next((speed for speed in said if speed is not None and speed > 0), None)


def read_rdma(machine: Machine) -> tuple[RdmaPort, ...]:
    """The ports of every HCA that sysfs lists, whether or not this container was given the device."""
    files = machine.files
    usable = _usable_devices(machine)
    return tuple(
        _read_port(files, device, port, usable=device in usable)
        for device in files.names(_RDMA)
        for port in map(parse_int, files.names(f"{_RDMA}/{device}/ports"))
        if port is not None
    )


def _usable_devices(machine: Machine) -> frozenset[str]:
    # sysfs shows the host's HCAs to every container; /dev/infiniband may be missing, or empty (nccl#451).
    verbs = [name for name in machine.files.names(_VERBS) if machine.opens(f"/dev/infiniband/{name}")]
    devices = (machine.files.read(f"{_VERBS}/{name}/ibdev") for name in verbs)
    return frozenset(device for device in devices if device)


def _read_port(files: Files, device: str, port: int, *, usable: bool) -> RdmaPort:
    folder = f"{_RDMA}/{device}/ports/{port}"
    rate = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", files.read(f"{folder}/rate") or "")
    return RdmaPort(
        device=device,
        port=port,
        active=(files.read(f"{folder}/state") or "").startswith("4:"),  # "4: ACTIVE", "1: DOWN", "2: INIT"
        gbit_per_second=float(rate[1]) if rate else None,
        link_layer=files.read(f"{folder}/link_layer"),
        interface=_rdma_interface(files, device, folder),
        usable=usable,
    )


def _rdma_interface(files: Files, device: str, folder: str) -> str | None:
    """The network interface of a port: for RoCE from its GID table, for InfiniBand the one on the same PCI function."""
    ndevs = f"{folder}/gid_attrs/ndevs"
    for index in files.names(ndevs):  # most of the 256 entries are empty and refuse to be read
        name = files.read(f"{ndevs}/{index}")
        if name:
            return name
    beside = files.names(f"{_RDMA}/{device}/device/net")
    return beside[0] if len(beside) == 1 else None


def read_nccl_conf(machine: Machine, named: str | None) -> tuple[FileSetting, ...]:
    """The files that NCCL reads: the one in NCCL_CONF_FILE, or else ~/.nccl.conf, and then /etc/nccl.conf."""
    home = machine.home()
    paths = (named or (f"{home}/.nccl.conf" if home else ""), "/etc/nccl.conf")
    return tuple(setting for path in paths if path for setting in _parse_nccl_conf(machine.files.read(path), path))


def _parse_nccl_conf(text: str | None, path: str) -> list[FileSetting]:
    """NAME=VALUE lines; only a `#` in the first column is a comment, and nothing is trimmed (nccl, param.cc)."""
    pairs = [line.partition("=") for line in (text or "").splitlines() if not line.startswith("#")]
    return [FileSetting(name, value, path) for name, sign, value in pairs if sign]


def read_routes(machine: Machine, targets: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The own source address toward each target that is a numeric address and has a route; names are not resolved."""
    numeric = (target for target in dict.fromkeys(targets) if _is_numeric(target))
    sources = ((target, machine.source_toward(target)) for target in numeric)
    return tuple((target, source) for target, source in sources if source is not None)


def read_listening_ports(machine: Machine) -> tuple[int, ...]:
    """TCP ports that somebody listens on (proc(5), /proc/net/tcp: column `st` is 0A)."""
    tables = [machine.files.read(path) or "" for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6")]
    rows = re.findall(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", "\n".join(tables), re.MULTILINE)
    return tuple(sorted({int(port, 16) for port in rows}))


def _is_numeric(target: str) -> bool:
    try:
        ipaddress.ip_address(target)
    except ValueError:
        return False
    return True
