"""Cgroup files → cores and bytes."""

from pathlib import Path

import pytest

from entrypoint.probe_limits import read_cpu_quota, read_machine_memory, read_memory_limit
from entrypoint.probe_machine import Files
from entrypoint.probe_storage import read_mounts

V2 = "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "33 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def files_of(root: Path, mounts: str, cgroup: str, texts: dict[str, str]) -> Files:
    for path, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": cgroup, **texts}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Files(root)


@pytest.mark.parametrize(
    ("mounts", "cgroup", "texts", "quota"),
    [
        (V2, "0::/", {"sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        (V2, "0::/", {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        (V2, "0::/", {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (V2, "0::/", {"sys/fs/cgroup/cpu.max": "200000"}, None),
        (V2, "0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3.0),
        (
            V2,
            "0::/a/b",
            {"sys/fs/cgroup/a/b/cpu.max": "100000 100000", "sys/fs/cgroup/a/cpu.max": "800000 100000"},
            1.0,
        ),
        # A process outside of the container's cgroup namespace: only what is mounted can be read.
        (V2, "0::/../../init", {"sys/fs/cgroup/cpu.max": "400000 100000", "sys/cpu.max": "1000 100000"}, 4.0),
        (V1_CPU, "3:cpu,cpuacct:/a", {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1"}, None),
        (
            V1_CPU,
            "3:cpu,cpuacct:/a",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        (
            V1_CPU,
            "3:cpu,cpuacct:/",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0"},
            None,
        ),
        ("", "0::/", {"sys/fs/cgroup/cpu.max": "200000 100000"}, None),
    ],
)
def test_the_quota_is_the_smallest_above(
    mounts: str, cgroup: str, texts: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    files = files_of(tmp_path, mounts, cgroup, texts)
    assert read_cpu_quota(files, read_mounts(files)) == quota


@pytest.mark.parametrize(
    ("mounts", "texts", "limit"),
    [
        (V2, {"sys/fs/cgroup/memory.max": "max"}, None),
        (V2, {"sys/fs/cgroup/memory.max": "8589934592"}, 8 << 30),
        (V2, {"sys/fs/cgroup/memory.max": "0"}, None),
        (V1_MEMORY, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),  # pages of 4 KiB
        (V1_MEMORY, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854710272"}, None),  # pages of 64 KiB
        (V1_MEMORY, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296"}, 4 << 30),
        (V1_CPU, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296"}, None),
        (f"{V1_MEMORY}\n{V2}", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "1024"}, 1024),
    ],
)
def test_no_limit_has_three_spellings(mounts: str, texts: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    files = files_of(tmp_path, mounts, "4:memory:/\n0::/", texts)
    assert read_memory_limit(files, read_mounts(files)) == limit


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("MemTotal:       16384 kB\nMemFree: 1 kB", 16384 * 1024),
        ("MemFree: 1 kB", None),
        ("MemTotal: kB", None),
        ("MemTotal: 0 kB", None),
        ("MemTotal: lots kB", None),
    ],
)
def test_the_kernel_counts_in_kibibytes(text: str, memory: int | None, tmp_path: Path) -> None:
    assert read_machine_memory(files_of(tmp_path, "", "", {"proc/meminfo": text})) == memory
