"""Scripts that `up` runs at boot. Each is told of, none stops the boot.

Runpod's two files, and folders of the image and of the volume:
    /pre_start.sh                   before the services
    /etc/roundhouse/hooks.d/*       after them, in the order of their names: what an image built on ours brings
    <volume>/hooks.d/*              then those of the volume, on every node that mounts it
    /post_start.sh                  last
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from entrypoint.errors import SettingError
from entrypoint.interrupts import Interrupts
from entrypoint.probe_machine import DIRECTORY_SECONDS, answer_within
from entrypoint.scripts import choose_interpreter

LIMIT_SECONDS = 300.0
_SAY_SECONDS = 10.0
_POLL_SECONDS = 0.1
_KILL_SECONDS = 5.0
_SUFFIXES = (".sh", ".bash", ".py")
_ROOT = Path("/")
Say = Callable[[str], None]


class Stopped(Exception):
    """A request to end came while a hook ran."""


def before_services(variables: Mapping[str, str], say: Say, *, root: Path = _ROOT) -> None:
    """Stopped where this process is asked to end."""
    _run_all([root / "pre_start.sh"], variables, say)


def after_services(variables: Mapping[str, str], volume: Path, say: Say, *, root: Path = _ROOT) -> None:
    """Stopped where this process is asked to end."""
    folders = (root / "etc/roundhouse/hooks.d", volume / "hooks.d")
    found = [path for folder in folders for path in _listed(folder, say)]
    _run_all([*found, root / "post_start.sh"], variables, say)


def _listed(folder: Path, say: Say) -> list[Path]:
    """Scripts and programs, by name; what an editor left behind is none."""

    def look() -> list[Path]:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return [path for path in files if path.suffix in _SUFFIXES or (os.access(path, os.X_OK) and not path.suffix)]

    try:
        return answer_within(DIRECTORY_SECONDS, look)
    except FileNotFoundError:
        return []
    except (OSError, TimeoutError) as error:
        say(f"{folder}: {getattr(error, 'strerror', None) or 'does not answer'}; its hooks are left out")
        return []


def _run_all(paths: list[Path], variables: Mapping[str, str], say: Say) -> None:
    for path in paths:
        if path.is_file():
            _run(path, variables, say)


def _run(path: Path, variables: Mapping[str, str], say: Say) -> None:
    began = time.monotonic()
    try:
        with open(path, "rb") as stream:
            interpreter = choose_interpreter(path, stream.read(1 << 16))
        command = [*((sys.executable, "-u") if interpreter is None else interpreter), str(path)]
        ended = _Hook(path, say).run(command, variables)
    except SettingError as error:
        return say(f"hook {path} was not run: {error}")
    except OSError as error:
        return say(f"hook {path} was not run: {error.strerror}")
    took = f"{time.monotonic() - began:.1f} s"
    say(f"hook {path} ended after {took}" if ended is None else f"hook {path} {ended}; the boot goes on")
    return None


class _Hook:
    """One hook: its output comes line by line under its name, and into no file that fills a disk."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path, self._say = path, say
        self._seen = 0
        self._rest = b""

    def run(self, command: list[str], variables: Mapping[str, str]) -> str | None:
        """None where it ended well, else how it ended. What it left in the background lives on."""
        with tempfile.TemporaryFile() as output, Interrupts() as interrupts:
            child = subprocess.Popen(
                command,
                env=dict(variables),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            ended = self._wait(child, output.fileno(), interrupts)
            self._show(output.fileno())
            if self._rest:
                self._line(self._rest)
        return ended

    def _wait(self, child: "subprocess.Popen[bytes]", output: int, interrupts: Interrupts) -> str | None:
        began = said = time.monotonic()
        while child.poll() is None:
            self._show(output)
            if interrupts.wait(_POLL_SECONDS):
                _end(child)
                raise Stopped
            now = time.monotonic()
            if now - began >= LIMIT_SECONDS:
                _end(child)
                return f"had not ended after {LIMIT_SECONDS:g} s and was ended (`&` leaves a program running)"
            if now - said >= _SAY_SECONDS:
                said = now
                self._say(f"hook {self._path} runs for {now - began:.0f} s; after {LIMIT_SECONDS:g} s it is ended")
        return None if child.returncode == 0 else f"failed: {_how(child.returncode)}"

    def _show(self, output: int) -> None:
        while data := os.pread(output, 1 << 16, self._seen):
            self._seen += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._line(line)

    def _line(self, line: bytes) -> None:
        self._say(f"[{self._path.name}] {line.decode(errors='replace').rstrip()}")


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _end(child: "subprocess.Popen[bytes]") -> None:
    """It and what it started in its own group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_SECONDS)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
