"""Mounts, the volume, and /dev/shm, without writing anything."""

import re
from dataclasses import dataclass
from pathlib import Path

from entrypoint.facts import Volume
from entrypoint.probe_machine import Files, Machine


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo (proc_pid_mountinfo(5)), of which these fields are used."""

    root: str  # the folder of its file system that is mounted
    point: str  # where
    filesystem: str
    options: tuple[str, ...]  # of the superblock; for cgroup v1 its controllers


def read_mounts(files: Files) -> tuple[Mount, ...]:
    """This process's mounts in the kernel's order; lines that make no sense are left out."""
    lines = (files.read("/proc/self/mountinfo") or "").splitlines()
    return tuple(mount for mount in map(_parse_mount, lines) if mount)


def _parse_mount(line: str) -> Mount | None:
    # The optional fields before the " - " vary in number, so the line has to be read from both ends.
    left, separator, right = line.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if not separator or len(before) < 6 or len(after) < 3:
        return None
    return Mount(_unescape(before[3]), _unescape(before[4]), after[0], tuple(after[2].split(",")))


def _unescape(path: str) -> str:
    r"""A path of mountinfo, in which white space and backslashes are octal.

    >>> _unescape(r"/mnt/my\040disk")
    '/mnt/my disk'
    """
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path)


def _holding_mount(mounts: tuple[Mount, ...], path: str) -> Mount | None:
    """The mount that a path lies on: of those above it the deepest, and of two at one place the later."""
    above = [mount for mount in mounts if f"{path}/".startswith(f"{mount.point.rstrip('/')}/")]
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def read_volume(machine: Machine, mounts: tuple[Mount, ...], path: Path) -> Volume:
    """The volume as its mount and its directory describe it."""
    directory = machine.directory(str(path))
    mount = _holding_mount(mounts, directory.real_path)
    return Volume(
        path=str(path),
        exists=directory.exists,
        mounted=None if mount is None else mount.point != "/",
        filesystem=None if mount is None else mount.filesystem,
        writable=directory.writable,
        total_bytes=directory.total_bytes,
        free_bytes=directory.free_bytes,
        mount_point=None if mount is None else mount.point,
    )


def read_shm_bytes(machine: Machine, memory_limit: int | None) -> int | None:
    """What can be put into /dev/shm: its own size, or less where the cgroup's memory limit is smaller."""
    # A memory-backed emptyDir shows half of the node's memory whatever the pod may use (kubernetes#125852).
    size = machine.directory("/dev/shm").total_bytes
    return size if size is None or memory_limit is None else min(size, memory_limit)
