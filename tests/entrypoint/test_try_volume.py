"""The trial of a volume, on real file systems that are read-only, full, closed, or hung."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mounts import PYTHON_AS, as_root, hung, tmpfs

from entrypoint.examine import trial_of
from entrypoint.try_volume import PROGRAM, nearest, try_volume
from entrypoint.volume import Trial, check_trial


def levels(trial: Trial, **known) -> dict[str, str]:
    return {check.name: check.level for check in check_trial(trial, checkpoint_bytes=known.get("checkpoint_bytes"))}


def test_a_healthy_folder_passes_and_nothing_is_left_in_it(tmp_path):
    trial = try_volume(tmp_path, speed=True)
    assert trial.failed is None
    assert trial.hung is None
    assert (trial.intact, trial.replaces, trial.lock) == (True, True, "works")
    assert trial.write_bytes_per_second > 1e6
    assert abs(trial.clock_offset) < 0.1
    assert list(tmp_path.iterdir()) == []
    assert set(levels(trial).values()) == {"ok"}


def test_without_the_speed_sample_little_is_written(tmp_path):
    trial = try_volume(tmp_path, speed=False)
    assert trial.write_bytes_per_second is None
    assert "volume.speed" not in levels(trial)


@as_root
@pytest.mark.parametrize(
    ("options", "errno", "fix"),
    [
        ("ro,size=8m", "EROFS", "mount it read-write"),
        ("size=4k", "ENOSPC", "it is full"),
        ("size=8m,nr_inodes=1", "ENOSPC", "no more files can be made"),
    ],
)
def test_a_volume_that_cannot_be_written_stops_with_its_reason(tmp_path, options, errno, fix):
    with tmpfs(tmp_path / "volume", options) as volume:
        trial = try_volume(volume, speed=False)
        left = list(volume.iterdir())
    (found,) = check_trial(trial, checkpoint_bytes=None)
    assert (found.name, found.level, found.value) == ("volume.writable", "stop", errno)
    assert str(volume) in found.text
    assert "free" in found.text
    assert fix in found.fix
    assert left == []


@as_root
@pytest.mark.parametrize(
    ("who", "mode", "owner", "fix"),
    [
        ("user 1234", 0o555, 1234, "let user 1234 write there"),
        ("user 1234", 0o755, 0, "let user 1234 write there"),
        ("root without capabilities", 0o755, 1234, "root squash"),
    ],
)
def test_who_may_not_write_is_told_why(tmp_path, who, mode, owner, fix):
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    volume = tmp_path / "volume"
    volume.mkdir()
    subprocess.run(["chown", str(owner), volume], check=True)
    volume.chmod(mode)
    program = (tmp_path / "trial.py", "/usr/bin/python3")  # the clone itself may be closed to others
    program[0].write_text(PROGRAM.read_text())
    command = [*PYTHON_AS[who], program[1], "-I", "-S", program[0], volume, "0"]
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    fields = {}
    for line in said.splitlines():
        fields |= json.loads(line)
    trial = Trial(str(volume), **{name: value for name, value in fields.items() if name in Trial.__dataclass_fields__})
    (found,) = check_trial(trial, checkpoint_bytes=None)
    assert (found.level, found.value) == ("stop", "EACCES")
    assert fix in found.fix


@as_root
def test_a_server_that_does_not_answer_is_left_after_the_limit(tmp_path):
    with hung(tmp_path / "volume") as volume:
        began = time.monotonic()
        trial = try_volume(volume, speed=False, limit=1.0)
        took = time.monotonic() - began
    assert trial.hung == "look"
    assert took < 4
    (found,) = check_trial(trial, checkpoint_bytes=None)
    assert (found.name, found.level) == ("volume.answers", "stop")


@as_root
def test_even_looking_for_the_folder_does_not_wait_for_a_hung_server(tmp_path):
    with hung(tmp_path / "volume") as volume:
        began = time.monotonic()
        trial = trial_of(volume / "deeper", speed=False)
        took = time.monotonic() - began
    assert trial.hung is not None
    assert took < 15


def test_a_folder_that_is_to_be_made_is_tried_above_it_and_not_made(tmp_path):
    wanted = tmp_path / "runs" / "here"
    assert nearest(wanted) == tmp_path
    trial = trial_of(wanted, speed=False)
    assert (trial.path, trial.place, trial.failed) == (str(wanted), str(tmp_path), None)
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_is_killed_is_a_failure_and_not_a_pass(tmp_path):
    program = tmp_path / "dies.py"
    program.write_text('import os\nprint(\'{"step": "write"}\', flush=True)\nos.kill(os.getpid(), 9)\n')
    trial = try_volume(tmp_path, speed=False, program=program)
    assert trial.failed == "write"
    assert "-9" in trial.error


@as_root
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("size=4k", "ENOSPC"),
        ("ro,size=8m", "not writable"),
        ("size=8m,nr_inodes=1", "0 files"),
        ("size=1m", "1 MiB free of 1 MiB; a checkpoint takes about "),
    ],
)
def test_training_does_not_start_on_a_volume_that_cannot_hold_it(options, said, tmp_path):
    """rt-12"""
    root = Path(__file__).resolve().parents[2]
    with tmpfs(tmp_path / "volume", options) as volume:
        began = time.monotonic()
        answer = subprocess.run(
            [sys.executable, "-m", "entrypoint", "train", "ddp"],
            cwd=root,
            env={"PATH": "/usr/bin:/bin", "TRAIN_VOLUME": str(volume)},
            capture_output=True,
            text=True,
        )
        took = time.monotonic() - began
        assert list(volume.iterdir()) == []
    assert answer.returncode == 69, answer.stderr
    assert said in answer.stderr
    assert str(volume) in answer.stderr
    assert "fix:" in answer.stderr
    assert took < 30  # rt-12 asks for 10 s; this machine is shared


@as_root
def test_a_script_on_a_hung_volume_ends_with_69_and_not_never(tmp_path):
    root = Path(__file__).resolve().parents[2]
    with hung(tmp_path / "volume") as volume:
        answer = subprocess.run(
            [sys.executable, "-m", "entrypoint", "train", str(volume / "my.py")],
            cwd=root,
            env={"PATH": "/usr/bin:/bin", "TRAIN_VOLUME": str(volume)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert answer.returncode == 69, answer.stderr
    assert f"{volume}/my.py does not answer" in answer.stderr
