"""TRAIN_SETUP: a command that gets this node ready, once per start and before the roll call."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from entrypoint.attempt import Launch, StopRequest
from entrypoint.errors import MachineError
from entrypoint.run_folder import RunFolder, last_lines, note_json

_POLL_SECONDS = 0.2
_SAY_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def set_up(command: str, environment: Mapping[str, str], launch: Launch, stop: StopRequest) -> bool:
    """Run it; its output goes to setup.log in the run's logs, which the screen follows. MachineError where it fails.

    False: a request to stop came meanwhile, and it was ended within the grace. It has no time limit, because it may
    download for hours; it says every minute that it still runs.
    """
    folder = launch.folder
    launch.say(f"TRAIN_SETUP begins; its output is in {folder.setup_log}")
    began = said = time.monotonic()
    try:
        with open(folder.setup_log, "ab") as log:
            child = subprocess.Popen(
                ["bash", "-c", command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # no thread of ours runs yet
            )
    except OSError as error:
        raise MachineError(
            f"TRAIN_SETUP could not be started: {error.filename}: {error.strerror}",
            fix="mend what this names: the volume of the run, or bash in this image",
        ) from None
    try:
        while child.poll() is None:
            launch.beat()
            if stop.look():
                _end(child, launch.grace_seconds, stop)
                return False
            if time.monotonic() - said >= _SAY_SECONDS:
                said = time.monotonic()
                launch.say(f"TRAIN_SETUP has run for {said - began:.0f} s")
            time.sleep(_POLL_SECONDS)
    except BaseException:
        _kill(child)
        raise
    if child.returncode != 0:
        raise _failed(child.returncode, folder)
    launch.say(f"TRAIN_SETUP ended well after {time.monotonic() - began:.0f} s")
    return True


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _failed(code: int, folder: RunFolder) -> MachineError:
    """Also for whoever looks at the run later: failure.json, with its last lines."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    problem = MachineError(
        f"TRAIN_SETUP {how} on node {folder.node}", fix=f"correct it; all it said: {folder.setup_log}"
    )
    document: dict[str, Any] = {
        "node": folder.node,
        "rank": None,
        "attempt": None,
        "exit_code": problem.exit_code,
        "signal": signal.Signals(-code).name if code < 0 else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "text": problem.problem,
        "lines": list(last_lines(folder.setup_log, 20)),
        "ranks": {},
    }
    note_json(folder.of_node("failure.json"), document)
    return problem


def _end(child: "subprocess.Popen[bytes]", grace_seconds: float, stop: StopRequest) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    until = time.monotonic() + grace_seconds
    while child.poll() is None and time.monotonic() < until:
        stop.look()
        if stop.now:
            break
        time.sleep(_POLL_SECONDS)
    _kill(child)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
