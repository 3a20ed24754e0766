"""What probe asks of a machine: files below a root, and the few answers that are no file. The live ones are here."""

import array
import fcntl
import ipaddress
import os
import pwd
import re
import resource
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from entrypoint.facts import Software
from entrypoint.probe_nvml import Driver, ask_nvml
from entrypoint.probe_software import read_software

Answer = TypeVar("Answer")

BUILD = Path(__file__).resolve().parent.parent / "build.json"  # the image has one, a checkout has not
RESOLVE_SECONDS = 0.1
DIRECTORY_SECONDS = 2.0  # a healthy server answers in milliseconds, a first automount takes about a second
NVML_SECONDS = 60.0  # without the persistence daemon every GPU is first woken up; a broken one may never answer
_FILE_BYTES = 1 << 20  # mountinfo of a busy Kubernetes node has some 100 KB; nothing else comes near
_SIOCETHTOOL, _ETHTOOL_GDRVINFO = 0x8946, 3  # linux/sockios.h, linux/ethtool.h
_DISCARD_PORT = 9  # connecting a UDP socket sends nothing, so any port will do


@dataclass(frozen=True, slots=True)
class Files:
    """Reads below `root`; whatever cannot be read says nothing, and nothing raises."""

    root: Path

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """The text of a file without the white space around it; None: not there, not readable, or empty."""
        try:
            with self._at(path).open("rb") as file:
                return file.read(_FILE_BYTES).decode(errors="replace").strip() or None
        except (OSError, ValueError):  # ValueError: a NUL in the path
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """What a folder holds, mlx5_9 before mlx5_10."""
        try:
            return tuple(sorted(os.listdir(self._at(folder)), key=lambda name: (len(name), name)))
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        """Whether anything is there."""
        try:
            return self._at(path).exists()
        except (OSError, ValueError):
            return False

    def target(self, link: str) -> str | None:
        """The last name of what a symbolic link points to, whether or not that exists."""
        try:
            return os.path.basename(os.readlink(self._at(link))) or None
        except (OSError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface as the kernel's calls describe it, which is right in every network namespace."""

    index: int
    name: str
    addresses: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # psutil's words: "up", "running", "loopback", "pointopoint" …
    mtu: int | None = None
    mbit_per_second: int | None = None  # as the driver claims; a veth claims 10000
    driver: str | None = None  # ethtool's: "veth", "bridge", "mlx5_core" …


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory as stat, access and statvfs see it."""

    exists: bool | None
    real_path: str
    writable: bool | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that probe may ask; a replayed one answers from a folder. No call raises or waits for ever."""

    files: Files
    hostname: Callable[[], str]
    resolve: Callable[[str], tuple[str, ...] | None]  # None: no answer in time
    home: Callable[[], str | None]  # of this user in the user database, where NCCL looks: $HOME may differ
    cores: Callable[[], int]
    soft_limit: Callable[[str], int | None]  # of "memlock", "stack" or "nofile"; None: unlimited
    links: Callable[[], tuple[Link, ...]]
    source_toward: Callable[[str], str | None]  # own address on the route to a numeric address
    directory: Callable[[str], Directory]
    opens: Callable[[str], bool]  # a device, read-write
    nvml: Callable[[], Driver | None]
    software: Callable[[], Software | None]


def parse_int(text: str | None) -> int | None:
    """A decimal integer of at most 19 digits, which is what the kernel writes.

    >>> parse_int("-1"), parse_int("max"), parse_int(None)
    (-1, None, None)
    """
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,19}", text) else None


def within(seconds: float, call: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What `call` returns, or `otherwise` after `seconds`; its thread is then left behind and ends with the process."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the cgroup's pids limit is reached
        return otherwise
    thread.join(seconds)
    return answers[0] if answers else otherwise


def answer_within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """What `call` returns or raises; TimeoutError where it does neither, as on a file system whose server is gone."""

    def try_it() -> tuple[Answer | None, Exception | None]:
        try:
            return call(), None
        except Exception as error:
            return None, error

    answer = within(seconds, try_it, otherwise=None)
    if answer is None:
        raise TimeoutError
    if answer[1] is not None:
        raise answer[1]
    return answer[0]  # type: ignore[return-value]  # None only where `call` returns it


def _hostname() -> str:
    try:
        return socket.gethostname()
    except (OSError, UnicodeError):
        return ""


def _resolve(name: str) -> tuple[str, ...] | None:
    def ask() -> tuple[str, ...]:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # UnicodeError: a label that is too long
            return ()
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))

    return within(RESOLVE_SECONDS, ask, otherwise=None)


def _home() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir or None
    except KeyError:  # a user without a name, as platforms like to choose
        return None


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


def _soft_limit(name: str) -> int | None:
    # For the calling process itself getrlimit(2) has no way to fail: "unknown" cannot happen here.
    soft, _hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    return None if soft == resource.RLIM_INFINITY else soft


def _asked(call: Callable[[], Answer], otherwise: Answer) -> Answer:
    try:
        return call()
    except (OSError, ValueError, psutil.Error):
        return otherwise


def _links() -> tuple[Link, ...]:
    names: list[tuple[int, str]] = _asked(socket.if_nameindex, [])
    addresses: dict[str, Any] = _asked(psutil.net_if_addrs, {})
    stats: dict[str, Any] = _asked(psutil.net_if_stats, {})
    links = []
    for index, name in names:
        # An address with a label comes back under that label: "eth0:1" is an address of eth0.
        own = [entry for label, entries in addresses.items() if label.split(":")[0] == name for entry in entries]
        said = stats.get(name)
        links.append(
            Link(
                index=index,
                name=name,
                addresses=tuple(_internet_addresses(own)),
                flags=tuple(said.flags.split(",")) if said else (),
                mtu=said.mtu if said else None,
                mbit_per_second=said.speed if said else None,
                driver=_driver(name),
            )
        )
    return tuple(links)


def _internet_addresses(entries: Iterable[Any]) -> list[str]:
    found = []
    for entry in entries:
        if entry.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(ValueError):
                found.append(_with_prefix(entry.address, entry.netmask))
    return found


def _with_prefix(address: str, netmask: str | None) -> str:
    """Address and prefix length as `ip` writes them; without a mask, as on a tunnel's end, the address alone.

    >>> _with_prefix("fe80::1%eth0", "ffff:ffff:ffff:ffff::"), _with_prefix("100.64.0.7", None)
    ('fe80::1/64', '100.64.0.7/32')
    """
    number = ipaddress.ip_address(address.partition("%")[0])
    bits = int(ipaddress.ip_address(netmask)).bit_count() if netmask else number.max_prefixlen
    return f"{number}/{bits}"


def _driver(name: str) -> str | None:
    """The name of an interface's driver; ETHTOOL_GDRVINFO needs no privilege, and no /sys of this namespace."""
    answer = array.array("B", struct.pack("I192x", _ETHTOOL_GDRVINFO))  # struct ethtool_drvinfo
    request = struct.pack("16sP", os.fsencode(name), answer.buffer_info()[0])  # struct ifreq
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    except OSError:
        return None
    return answer.tobytes()[4:36].partition(b"\0")[0].decode(errors="replace") or None


def _source_toward(address: str) -> str | None:
    try:
        ipaddress.ip_address(address)
        # Gives an IPv6 address its scope number; with AI_NUMERICHOST no name server is asked.
        found = socket.getaddrinfo(address, _DISCARD_PORT, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, *_, target = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as any_socket:
            any_socket.connect(target)
            return str(any_socket.getsockname()[0]).partition("%")[0]
    except (OSError, ValueError):
        return None


def _directory(path: str) -> Directory:
    def look() -> Directory:
        try:
            real_path = os.path.realpath(path)
            is_directory = stat.S_ISDIR(os.stat(real_path).st_mode)
            space = os.statvfs(real_path)
        except (FileNotFoundError, NotADirectoryError):
            return Directory(exists=False, real_path=path)
        except (OSError, ValueError):  # a stale NFS handle, a path without permission
            return Directory(exists=None, real_path=path)
        return Directory(
            exists=is_directory,
            real_path=real_path,
            writable=os.access(real_path, os.W_OK | os.X_OK),
            total_bytes=space.f_blocks * space.f_frsize,
            free_bytes=space.f_bavail * space.f_frsize,
        )

    # On a hard NFS mount whose server is gone, even stat waits for ever.
    return within(DIRECTORY_SECONDS, look, otherwise=Directory(exists=None, real_path=path))


def _opens(device: str) -> bool:
    # The devices cgroup refuses at open(2), not at access(2). Opening uverbs takes nothing from the HCA.
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except (OSError, ValueError):
        return False
    return True


def _nvml() -> Driver | None:
    return within(NVML_SECONDS, ask_nvml, otherwise=None)


def _software() -> Software | None:
    return read_software([Path(folder) for folder in sys.path if folder], build=BUILD)


THIS_MACHINE = Machine(
    files=Files(Path("/")),
    hostname=_hostname,
    resolve=_resolve,
    home=_home,
    cores=_cores,
    soft_limit=_soft_limit,
    links=_links,
    source_toward=_source_toward,
    directory=_directory,
    opens=_opens,
    nvml=_nvml,
    software=_software,
)
