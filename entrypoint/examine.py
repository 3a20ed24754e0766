"""Looks closer than probe: starts CUDA, tries the volume, asks nvidia-smi. Seconds where there are GPUs."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from entrypoint.caches import COMPILED
from entrypoint.check_examined import BuildLock, Cache, CudaStart, Examined
from entrypoint.facts import Facts
from entrypoint.probe_machine import within
from entrypoint.reasons import Setting
from entrypoint.try_volume import nearest, try_volume
from entrypoint.volume import Trial

CUDA_SECONDS = 60.0  # without the persistence daemon every GPU is first woken up
TOPOLOGY_SECONDS = 30.0
_CUDA = Path(__file__).with_name("cuda_start.py")
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC of adjtimex(2)


def examine(
    facts: Facts, settings: Sequence[Setting], variables: Mapping[str, str], volume: Path | None, *, speed: bool
) -> Examined:
    """Everything that takes longer than a plan may; `volume` None: it is not tried."""
    caches = cache_folders(settings, variables)
    return Examined(
        trial=None if volume is None else trial_of(volume, speed=speed),
        topology=read_topology(variables) if facts.gpus else None,
        cuda=start_cuda(variables) if facts.gpus else None,
        clock_synchronized=_clock_synchronized(),
        tmux=shutil.which("tmux", path=variables.get("PATH")),
        caches=tuple(_look_at(name, path, ours=ours) for name, path, ours in caches),
        locks=build_locks(Path(path) for name, path, _ in caches if name == "TORCH_EXTENSIONS_DIR"),
    )


def trial_of(volume: Path, *, speed: bool) -> Trial:
    """A trial of the volume, or of the nearest folder above it that exists."""
    place = within(2.0, lambda: nearest(volume), otherwise=None)
    if place is None:
        return Trial(str(volume), hung="look", limit=2.0)
    trial = try_volume(place, speed=speed)
    return trial if place == volume else replace(trial, path=str(volume), place=str(place))


def start_cuda(variables: Mapping[str, str], program: Path = _CUDA) -> CudaStart:
    """How CUDA starts under these variables, which may hide devices or bring another library."""
    command = [sys.executable, "-I", "-S", str(program)]
    said = _run(command, variables, CUDA_SECONDS)
    if said is None:
        return CudaStart(error=f"no answer in {CUDA_SECONDS:g} s")
    try:
        answer = json.loads(said)
    except ValueError:
        return CudaStart(error="its process ended without a word (a crash in the driver?)")
    apart = tuple((a, b) for a, b in answer.get("apart", ()))
    return CudaStart(answer.get("code"), answer.get("devices"), apart, answer.get("error"))


def read_topology(variables: Mapping[str, str]) -> str | None:
    """What `nvidia-smi topo -m` prints; None: not installed, or no answer."""
    program = shutil.which("nvidia-smi", path=variables.get("PATH"))
    return _run([program, "topo", "-m"], variables, TOPOLOGY_SECONDS) if program else None


def _run(command: Sequence[str], variables: Mapping[str, str], limit: float) -> str | None:
    child = subprocess.Popen(command, env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        return child.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # stuck in the driver it ends when the driver lets it
            child.wait(0.5)
        if child.stdout:
            child.stdout.close()
        return None


def _clock_synchronized() -> bool | None:
    """Whether the kernel believes that something keeps its clock in time; None: it does not say."""
    buffer = ctypes.create_string_buffer(512)  # struct timex with modes = 0: only read; `status` is its sixth long
    with suppress(OSError, AttributeError):
        if ctypes.CDLL(None).adjtimex(buffer) >= 0:
            return not int.from_bytes(buffer.raw[40:44], sys.byteorder) & _UNSYNCHRONIZED
    return None


def cache_folders(settings: Sequence[Setting], variables: Mapping[str, str]) -> list[tuple[str, str, bool]]:
    """(variable, folder, whether we set it) of each cache that has a place."""
    ours = {setting.name: setting.value for setting in settings}
    names = ("HF_HOME", *COMPILED)
    told = [(name, variables.get(name) or ours.get(name, ""), not variables.get(name)) for name in names]
    return [each for each in told if each[1]]


def _look_at(name: str, path: str, *, ours: bool) -> Cache:
    def look() -> os.statvfs_result | None:
        with suppress(OSError):
            return os.statvfs(nearest(Path(path)))
        return None

    found = within(2.0, look, otherwise=None)
    if found is None:
        return Cache(name, path, None, None, ours)
    executes = not found.f_flag & os.ST_NOEXEC if name in COMPILED else None
    return Cache(name, path, found.f_bavail * found.f_frsize, executes, ours)


def build_locks(folders: Iterator[Path]) -> tuple[BuildLock, ...]:
    """The locks below folders of extensions, `<folder>/<op>/lock` and one deeper where torch adds its own name."""
    locks = [lock for folder in folders for pattern in ("*/lock", "*/*/lock") for lock in folder.glob(pattern)]
    if not locks:
        return ()
    held = _open_files()
    found = []
    for path in locks:
        with suppress(FileNotFoundError):  # another node of this machine was faster
            found.append(BuildLock(str(path), time.time() - path.stat().st_mtime, os.path.realpath(path) in held))
    return tuple(found)


def _open_files() -> frozenset[str]:
    """Paths that processes here have open, of those that this user may look at; torch holds its lock open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            for file in os.listdir(process):
                with suppress(OSError):
                    found.add(os.readlink(process / file))
    return frozenset(found)
