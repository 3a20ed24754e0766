"""Mount lines → the file system that holds a path."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.probe_machine import THIS_MACHINE, Directory, Files
from entrypoint.probe_storage import read_mounts, read_shm_bytes, read_volume

ROOT = "28 1 8:1 / / rw - overlay overlay rw"


@pytest.mark.parametrize(
    ("lines", "path", "mounted", "filesystem"),
    [
        (ROOT, "/workspace", False, "overlay"),
        (f"{ROOT}\n40 28 0:50 / /workspace rw shared:4 master:2 - nfs4 h:/e rw", "/workspace", True, "nfs4"),
        (f"{ROOT}\n40 28 0:50 / /workspace rw - nfs4 h:/e rw", "/workspace/runs/a", True, "nfs4"),
        (f"{ROOT}\n40 28 0:50 / /works rw - nfs4 h:/e rw", "/worksite", False, "overlay"),  # a prefix is no parent
        (f"{ROOT}\n40 28 8:9 / /w rw - ext4 a rw\n41 40 0:9 / /w rw - fuse.rclone b rw", "/w", True, "fuse.rclone"),
        (f"{ROOT}\n40 28 0:50 / /my\\040disk rw - xfs /dev/sdb rw", "/my disk", True, "xfs"),
        (f"{ROOT}\n40 28 0:50 / /w\n / - \nnonsense", "/w", False, "overlay"),
        (ROOT, "/", False, "overlay"),
        ("", "/workspace", None, None),
    ],
)
def test_the_deepest_mount_above_holds_the_volume(
    lines: str, path: str, mounted: bool | None, filesystem: str | None, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(lines)
    machine = replace(THIS_MACHINE, files=Files(tmp_path), directory=lambda path: Directory(True, real_path=path))
    volume = read_volume(machine, read_mounts(machine.files), Path(path))
    assert (volume.mounted, volume.filesystem) == (mounted, filesystem)


@pytest.mark.parametrize(
    ("size", "limit", "expected"), [(100, None, 100), (100, 30, 30), (30, 100, 30), (None, 30, None)]
)
def test_shared_memory_counts_against_the_cgroup(size: int | None, limit: int | None, expected: int | None) -> None:
    machine = replace(THIS_MACHINE, directory=lambda path: Directory(True, path, total_bytes=size))
    assert read_shm_bytes(machine, limit) == expected


def test_a_link_to_the_volume_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "workspace").symlink_to(tmp_path / "disk")
    assert THIS_MACHINE.directory(str(tmp_path / "workspace")).real_path == str((tmp_path / "disk").resolve())
