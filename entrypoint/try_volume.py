"""Tries the volume by writing to it, in a process that can be left behind when the server does not answer."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from entrypoint.volume import Trial

PROGRAM = Path(__file__).with_name("trial.py")
TRIAL_SECONDS = 8.0  # a healthy network volume takes some 50 ms, a busy one a second
SPEED_SECONDS = 0.8


def try_volume(path: Path, *, speed: bool, limit: float = TRIAL_SECONDS, program: Path = PROGRAM) -> Trial:
    """What came of writing, renaming, locking and deleting below `path`, or below the nearest folder that is there.

    Takes some 50 ms, with `speed` a second, and `limit` seconds at most. Leaves nothing behind, unless the volume hung.
    """
    # -I -S: none of the user's modules or settings, and a start in 15 ms.
    command = [sys.executable, "-I", "-S", str(program), str(path), str(SPEED_SECONDS if speed else 0.0)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        lines, in_time = _read(child, limit)
    finally:
        _leave(child)
    said: dict[str, Any] = {}
    for line in lines:
        said |= json.loads(line)
    if not in_time:
        return _trial(path, said | {"hung": said.get("step", "look"), "limit": limit})
    if not said.get("done") and "failed" not in said:
        said |= {"failed": said.get("step", "look"), "error": f"the trial ended with {child.poll()}"}
    return _trial(path, said)


def nearest(path: Path) -> Path:
    """The path, or of those above it the first that exists."""
    return next((each for each in (path, *path.parents) if os.path.isdir(each)), path)  # Path.is_dir may raise


def _trial(path: Path, said: dict[str, Any]) -> Trial:
    fields = {name: value for name, value in said.items() if name in Trial.__dataclass_fields__}
    return Trial(path=str(path), **fields)


def _read(child: "subprocess.Popen[bytes]", limit: float) -> tuple[Sequence[str], bool]:
    """The lines that the child wrote before its end or before the limit, and whether it ended in time."""
    assert child.stdout is not None
    until = time.monotonic() + limit
    text = b""
    with DefaultSelector() as selector:
        selector.register(child.stdout, EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if not selector.select(left):
                break
            piece = os.read(child.stdout.fileno(), 1 << 16)
            if not piece:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.1, until - time.monotonic()))
                return text.decode().splitlines(), True
            text += piece
    return [line for line in text.decode().split("\n")[:-1] if line], False


def _leave(child: "subprocess.Popen[bytes]") -> None:
    """Ends the child; one that is stuck in the kernel takes the signal when its server is back."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(0.5)
    for stream in (child.stdout, child.stderr):
        if stream:
            stream.close()
