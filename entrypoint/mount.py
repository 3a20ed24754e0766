"""TRAIN_MOUNT: what it asks for, and the command that does it. Pure.

nfs://host/export?vers=4.1,nconnect=8     host:/export     /dev/sdb1     /images/data.img?ro
"""

import re
from dataclasses import dataclass
from pathlib import Path

from entrypoint.errors import SettingError
from entrypoint.facts import Facts
from entrypoint.reasons import Check
from entrypoint.volume import size

SYS_ADMIN = 1 << 21  # CAP_SYS_ADMIN (capabilities(7)); mount(2) wants it
_FIX = "nfs://host/export, host:/export, a device (/dev/sdb1) or a file with a file system; options after a ?"
_NEEDS = (
    "docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined; or leave TRAIN_MOUNT away and mount it "
    "outside: docker run -v, the platform's network volume, a PersistentVolumeClaim"
)


@dataclass(frozen=True, slots=True)
class Mounting:
    """What to mount: a source as mount(8) takes it, its kind and its options."""

    source: str
    kind: str  # "nfs", "nfs4", "device", "file"
    options: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether several machines may have it mounted at once."""
        return self.kind.startswith("nfs") or "ro" in self.options


def parse_mount(text: str) -> Mounting:
    """TRAIN_MOUNT as a value; SettingError where it is none of the forms."""
    body, question, after = text.partition("?")
    options = tuple(option for option in after.replace("&", ",").split(",") if option)
    if question and not options:
        raise SettingError(f"TRAIN_MOUNT={text!r} has a ? and no options", fix=f"as in {_FIX}")
    if wrong := [option for option in options if not re.fullmatch(r"[\w.:=/+@-]+", option)]:
        raise SettingError(f"TRAIN_MOUNT={text!r}: {wrong[0]!r} is no mount option", fix="as in ?vers=4.1,nconnect=8")
    if match := re.fullmatch(r"(nfs4?)://(\[[0-9A-Fa-f:.%]+\]|[^/:\[\]\s]+)(?::(\d{1,5}))?(/(?!/)\S*)", body):
        kind, host, port, export = match.groups()
        return Mounting(f"{host}:{export}", kind, (*options, *([f"port={port}"] if port else [])))
    if match := re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^/:\[\]\s]+):(/(?!/)\S*)", body):
        return Mounting(body, "nfs", options)
    if body.startswith("/dev/"):
        return Mounting(body, "device", options)
    if re.match("/[^/]", body):
        return Mounting(body, "file", options)
    raise SettingError(f"TRAIN_MOUNT={text!r} is nothing that can be mounted here", fix=f"one of {_FIX}")


def mount_command(mounting: Mounting, target: Path) -> tuple[str, ...]:
    """The command that mounts it.

    >>> mount_command(parse_mount("nfs://10.0.0.5/export?vers=4.1,nconnect=8"), Path("/workspace"))
    ('mount', '-t', 'nfs', '-o', 'vers=4.1,nconnect=8', '10.0.0.5:/export', '/workspace')
    """
    options = (*mounting.options, *(["loop"] if mounting.kind == "file" and "loop" not in mounting.options else []))
    return (
        "mount",
        *(["-t", mounting.kind] if mounting.kind.startswith("nfs") else []),
        *(["-o", ",".join(options)] if options else []),
        mounting.source,
        str(target),
    )


def refuse_unshared(mounting: Mounting, nodes: int) -> None:
    """A disk that several machines write to is destroyed within minutes: its file system believes to be alone."""
    if nodes > 1 and not mounting.is_shared:
        raise SettingError(
            f"TRAIN_MOUNT={mounting.source}: {nodes} nodes would each mount a disk of their own, or destroy one that "
            "they share",
            fix="mount a network file system (nfs://host/export), or the disk read-only (?ro)",
        )


def check_mount(text: str | None, facts: Facts, volume: Path) -> Check | None:
    """Whether TRAIN_MOUNT can be done here, or is done already; None: nothing is asked for."""
    if text is None:
        return None
    mounting = parse_mount(text)
    if facts.volume.exists is None:  # a mount that does not answer: what there is to say of it is said elsewhere
        return None
    if facts.volume.mount_point == str(volume):
        where = f"{volume} is a mount already ({facts.volume.filesystem}, {size(facts.volume.total_bytes)})"
        return Check("volume.mounting", "ok", f"{where}; TRAIN_MOUNT={text} is not mounted over it", value=text)
    if facts.capabilities is not None and not facts.capabilities & SYS_ADMIN:
        return Check("volume.mounting", "stop", cannot_mount(text), _NEEDS, text)
    return Check("volume.mounting", "ok", f"{mounting.source} will be mounted at {volume}", value=text)


def cannot_mount(text: str) -> str:
    """What is said without the capability."""
    return f"TRAIN_MOUNT={text}: mounting needs CAP_SYS_ADMIN, which this process has not"


FIX_CAPABILITY = _NEEDS
