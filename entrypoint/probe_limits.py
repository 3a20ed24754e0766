"""What the cgroups leave of the machine's cores and memory, in version 1 and in version 2."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from entrypoint.probe_machine import Files, parse_int
from entrypoint.probe_storage import Mount

# Version 1 has no word for "no limit": it shows the largest page-aligned number, 2^63 less one page of 4 or 64 KiB.
_NO_LIMIT_BYTES = 1 << 62


def read_cpu_quota(files: Files, mounts: tuple[Mount, ...]) -> float | None:
    """Cores' worth of time that the cgroup and all that hold it allow; None: no limit, or none that can be seen."""
    folders = tuple(_cgroup_folders(files, mounts, "cpu"))
    quotas = [quota for folder in folders for quota in (_quota_v1(files, folder), _quota_v2(files, folder)) if quota]
    return min(quotas, default=None)


def read_memory_limit(files: Files, mounts: tuple[Mount, ...]) -> int | None:
    """Bytes that the cgroup and all that hold it allow; None: no limit, or none that can be seen."""
    names = ("memory.limit_in_bytes", "memory.max")  # version 1, version 2
    folders = tuple(_cgroup_folders(files, mounts, "memory"))
    numbers = [parse_int(files.read(f"{folder}/{name}")) for folder in folders for name in names]
    return min((number for number in numbers if number is not None and 0 < number < _NO_LIMIT_BYTES), default=None)


def read_machine_memory(files: Files) -> int | None:
    """Bytes of memory that the kernel manages, from /proc/meminfo."""
    for line in (files.read("/proc/meminfo") or "").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "MemTotal:":
            kibibytes = parse_int(words[1])
            return kibibytes * 1024 if kibibytes else None
    return None


def _quota_v1(files: Files, folder: str) -> float | None:
    quota = parse_int(files.read(f"{folder}/cpu.cfs_quota_us"))  # -1: no limit
    period = parse_int(files.read(f"{folder}/cpu.cfs_period_us"))
    return _cores(quota, period)


def _quota_v2(files: Files, folder: str) -> float | None:
    words = (files.read(f"{folder}/cpu.max") or "").split()  # "200000 100000", or "max 100000" for no limit
    return _cores(parse_int(words[0]), parse_int(words[1])) if len(words) == 2 else None


def _cores(quota: int | None, period: int | None) -> float | None:
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _cgroup_folders(files: Files, mounts: tuple[Mount, ...], controller: str) -> Iterator[str]:
    """This process's cgroup and those that hold it, as far up as they are mounted here: each may have a limit."""
    own = _own_cgroups(files)
    for mount in mounts:
        if mount.filesystem == "cgroup2":
            yield from _upwards(mount, own.get(""))
        elif mount.filesystem == "cgroup" and controller in mount.options:
            yield from _upwards(mount, own.get(controller))


def _own_cgroups(files: Files) -> dict[str, str]:
    """Path by controller; version 2 has the one path for all, under the empty name (cgroups(7))."""
    paths = {}
    for line in (files.read("/proc/self/cgroup") or "").splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _upwards(mount: Mount, path: str | None) -> Iterator[str]:
    """Folders from the cgroup up to the mount point, or the mount point alone where the cgroup lies outside of it."""
    # Outside is usual: a container has its own cgroup mounted as the top, while the path may count from the host's.
    place = PurePosixPath(path or "/")
    inside = place.relative_to(mount.root) if place.is_relative_to(mount.root) else PurePosixPath()
    for folder in (inside, *inside.parents):
        if ".." not in folder.parts:
            yield str(PurePosixPath(mount.point) / folder)
