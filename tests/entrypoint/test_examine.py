"""The closer look: CUDA by a library that answers as a driver, nvidia-smi by a stand-in, locks by real processes."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entrypoint import examine
from entrypoint.check_examined import CudaStart
from entrypoint.examine import build_locks, read_topology, start_cuda

# A libcuda of three functions: cuInit gives CODE; two devices, of which the first reaches the second if PEER.
LIBCUDA = """
int cuInit(unsigned flags) { return CODE; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceCanAccessPeer(int *can, int a, int b) { *can = PEER; return 0; }
"""
compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")


@compiler
@pytest.mark.parametrize(
    ("code", "peer", "expected"),
    [
        (0, 1, CudaStart(0, 2)),
        (0, 0, CudaStart(0, 2, apart=((0, 1),))),
        (802, 0, CudaStart(802)),
    ],
)
def test_cuda_is_started_without_torch(tmp_path, code, peer, expected):
    (tmp_path / "cuda.c").write_text(LIBCUDA)
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-DCODE={code}", f"-DPEER={peer}"]
    subprocess.run(["gcc", *library, "-o", tmp_path / "libcuda.so.1", tmp_path / "cuda.c"], check=True)
    assert start_cuda({"LD_LIBRARY_PATH": str(tmp_path)}) == expected


def test_without_the_drivers_library_it_says_so():
    assert "libcuda.so.1" in start_cuda({}).error


@pytest.mark.parametrize(
    ("program", "words"),
    [("import os; os.abort()", "crash"), ("import time; time.sleep(60)", "no answer in 1 s")],
)
def test_a_driver_that_crashes_or_hangs_is_left(tmp_path, monkeypatch, program, words):
    monkeypatch.setattr(examine, "CUDA_SECONDS", 1.0)
    (tmp_path / "start.py").write_text(program)
    assert words in start_cuda({}, tmp_path / "start.py").error


def test_the_matrix_is_what_nvidia_smi_prints(tmp_path):
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "asked: $@"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert read_topology({"PATH": f"{tmp_path}:/bin:/usr/bin"}) == "asked: topo -m\n"
    assert read_topology({"PATH": str(tmp_path / "empty")}) is None


def test_a_lock_of_a_build_is_held_as_long_as_its_builder_lives(tmp_path):
    (tmp_path / "py311_cpu" / "my_op").mkdir(parents=True)
    lock = tmp_path / "py311_cpu" / "my_op" / "lock"
    # As torch's FileBaton does: created exclusively, and kept open until it is released.
    code = "import os, sys, time; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print(flush=True); time.sleep(60)"
    builder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    builder.stdout.readline()
    (found,) = build_locks(iter([tmp_path]))
    assert (found.path, found.held) == (str(lock), True)
    builder.kill()
    builder.wait()
    builder.stdout.close()
    (found,) = build_locks(iter([tmp_path]))
    assert not found.held
    assert found.age_seconds < 60


def test_a_folder_without_locks_costs_nothing(tmp_path):
    assert build_locks(iter([tmp_path, tmp_path / "absent"])) == ()


def test_the_clock_of_this_kernel_is_asked():
    assert examine._clock_synchronized() in (True, False)


ROOT = Path(__file__).resolve().parents[2]


def train(tmp_path, **variables):
    (tmp_path / "mine.sh").write_text('ls -A "$TORCH_EXTENSIONS_DIR"; exit 7\n')
    environment = {"PATH": "/usr/bin:/bin", "TRAIN_VOLUME": str(tmp_path / "volume"), **variables}
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", "train", str(tmp_path / "mine.sh")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def leave_lock(folder: Path, *, age: float) -> Path:
    lock = folder / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - age, time.time() - age))
    return lock


@pytest.mark.slow
@pytest.mark.torch
def test_training_does_not_wait_on_the_lock_of_a_build_that_was_killed(tmp_path):
    """img-04: in our own folder it is removed; in one that somebody named, training stops with its name."""
    theirs = leave_lock(tmp_path / "ext", age=7200)
    answer = train(tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "ext"))
    assert answer.returncode == 69, answer.stderr
    assert str(theirs) in answer.stderr
    assert theirs.exists()
    printed = subprocess.run(
        [sys.executable, "-m", "entrypoint", "plan", "--json"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TRAIN_VOLUME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ours = Path(next(line.split('"')[3] for line in printed.splitlines() if f'"{tmp_path}/roundhouse' in line))
    (tmp_path / f"roundhouse-{os.geteuid()}").mkdir(mode=0o700)
    lock = leave_lock(ours.parent / "torch_extensions", age=5)
    answer = train(tmp_path, TMPDIR=str(tmp_path))
    assert answer.returncode == 7, answer.stderr
    assert f"removed {lock}" in answer.stderr


def test_compiled_code_is_not_loaded_from_where_others_may_write(tmp_path):
    (tmp_path / f"roundhouse-{os.geteuid()}").mkdir()
    (tmp_path / f"roundhouse-{os.geteuid()}").chmod(0o777)
    answer = train(tmp_path, TMPDIR=str(tmp_path))
    assert answer.returncode == 69, answer.stderr
    assert "may be written by others" in answer.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_a_temporary_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").touch()
    answer = train(tmp_path, TMPDIR=str(tmp_path / "file"))
    assert answer.returncode == 7, answer.stderr
    assert "TORCH_EXTENSIONS_DIR=" in answer.stdout
    assert "set TMPDIR" in answer.stdout
