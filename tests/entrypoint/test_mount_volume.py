"""Mounting, for real where this kernel can (a file with ext4), and by a stand-in `mount` where it cannot (NFS)."""

import subprocess
import sys
from pathlib import Path

import pytest
from mounts import PYTHON_AS, as_root, tmpfs

from entrypoint.errors import MachineError, SettingError
from entrypoint.mount_volume import mount_volume
from entrypoint.probe_machine import Files

ROOT = Path(__file__).resolve().parents[2]
ALL = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
MAY = "CapEff:\t000001ffffffffff\n"


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "disk.img"
    with open(path, "wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", path], check=True, env=ALL)
    yield path
    while subprocess.run(["umount", tmp_path / "volume"], capture_output=True, env=ALL).returncode == 0:
        pass


@as_root
def test_a_file_with_a_file_system_is_mounted_once(image, tmp_path):
    said = []
    for _ in range(2):
        mount_volume(str(image), tmp_path / "volume", ALL, said.append)
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{tmp_path}/volume " in line]
    assert len(mounts) == 1
    assert " - ext4 /dev/loop" in mounts[0]
    (tmp_path / "volume" / "file").write_text("written")
    assert said[0] == f"mounting: mount -o loop {image} {tmp_path}/volume"


@as_root
@pytest.mark.slow
@pytest.mark.torch
def test_train_mounts_before_it_looks_and_trains_there(image, tmp_path):
    (tmp_path / "mine.sh").write_text("findmnt -no FSTYPE --target $TRAIN_RUN_DIR; exit 7\n")
    variables = {**ALL, "TRAIN_VOLUME": str(tmp_path / "volume"), "TRAIN_MOUNT": str(image)}
    answer = subprocess.run(
        [sys.executable, "-m", "entrypoint", "train", str(tmp_path / "mine.sh")],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 7, answer.stderr
    assert "ext4" in answer.stdout


@as_root
def test_a_container_without_training_has_its_volume_too(image, tmp_path):
    variables = {**ALL, "TRAIN_VOLUME": str(tmp_path / "volume"), "TRAIN_MOUNT": str(image)}
    command = [sys.executable, "-m", "entrypoint", "up"]
    subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    assert (tmp_path / "volume").is_mount()


@as_root
def test_of_many_processes_one_mounts(image, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from entrypoint.mount_volume import mount_volume\n"
        "mount_volume(sys.argv[2], Path(sys.argv[3]), {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin'}, print)\n"
    )
    command = [sys.executable, "-c", code, str(ROOT), str(image), str(tmp_path / "volume")]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    mounts = Path("/proc/self/mountinfo").read_text()
    assert mounts.count(f" {tmp_path}/volume ") == 1


@as_root
def test_nothing_is_mounted_over_another_mount(tmp_path):
    said = []
    with tmpfs(tmp_path / "volume", "size=1m") as volume:
        mount_volume("nfs://nas/vol", volume, ALL, said.append)
    assert said == [f"{volume} is a mount of tmpfs already; TRAIN_MOUNT=nfs://nas/vol is not mounted over it"]


def stand_in(tmp_path, body):
    """A `mount` on a PATH of its own, a process with all capabilities, and whatever it then has mounted."""
    program = tmp_path / "bin" / "mount"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    proc = tmp_path / "root" / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "status").write_text(MAY)
    (proc / "mountinfo").write_text("28 1 8:1 / / rw - overlay overlay rw\n")
    return {"PATH": str(program.parent) + ":/usr/bin:/bin"}, Files(tmp_path / "root")


def test_nfs_is_mounted_by_its_command_line(tmp_path):
    volume = tmp_path / "volume"
    line = f"40 28 0:50 / {volume} rw - nfs4 nas:/vol rw"
    body = f'echo "$@" > {tmp_path}/asked; echo "{line}" >> {tmp_path}/root/proc/self/mountinfo'
    variables, files = stand_in(tmp_path, body)
    for _ in range(2):
        mount_volume("nfs://nas/vol?vers=4.1", volume, variables, lambda line: None, files=files)
        assert (tmp_path / "asked").read_text() == f"-t nfs -o vers=4.1 nas:/vol {volume}\n"
        (tmp_path / "asked").write_text(f"-t nfs -o vers=4.1 nas:/vol {volume}\n")
    assert volume.is_dir()


@pytest.mark.parametrize(
    ("body", "problem", "fix"),
    [
        ("echo 'mount.nfs: access denied by server while mounting nas:/vol' >&2; exit 32", "access denied", "export"),
        ("echo 'mount: bad option; need a /sbin/mount.nfs helper program' >&2; exit 32", "helper", "nfs-common"),
        ("echo 'mount.nfs: Operation not permitted' >&2; exit 32", "not permitted", "SYS_ADMIN"),
        ("exit 0", "nothing is mounted", "by hand"),
        ("exec sleep 60", "did not end in 1 s", "TCP 2049"),
    ],
)
def test_a_mount_that_fails_stops_with_its_words_and_leaves_no_folder(tmp_path, body, problem, fix):
    variables, files = stand_in(tmp_path, body)
    with pytest.raises(MachineError, match=problem) as failed:
        mount_volume("nfs://nas/vol", tmp_path / "a" / "volume", variables, lambda line: None, files=files, limit=1.0)
    assert fix in failed.value.fix
    assert not (tmp_path / "a").exists()


@as_root
def test_without_the_capability_it_says_so(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from entrypoint.mount_volume import mount_volume\n"
        "mount_volume('nfs://nas/vol', Path(sys.argv[2]), {'PATH': '/usr/bin'}, print)\n"
    )
    command = [*PYTHON_AS["root without capabilities"], sys.executable, "-c", code, str(ROOT), str(tmp_path / "v")]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert "mounting needs CAP_SYS_ADMIN, which this process has not" in answer.stderr
    assert "--cap-add SYS_ADMIN" in answer.stderr
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(("text", "words"), [("/dev/no-such-disk", "No such file"), ("{folder}", "is a folder")])
def test_a_source_that_is_not_there_is_a_wrong_setting(tmp_path, text, words):
    with pytest.raises(SettingError, match=words):
        mount_volume(text.format(folder=tmp_path), tmp_path / "volume", ALL, lambda line: None)
    assert not (tmp_path / "volume").exists()
