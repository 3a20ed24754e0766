"""One attempt: a fresh launch of this node's processes, watched to its end, with nothing left behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from entrypoint.errors import OWN_BUG, STOPPED
from entrypoint.failure import Ended, describe, first_to_fail, read_ended, sentence
from entrypoint.launchers import Launcher
from entrypoint.liveness import Liveness
from entrypoint.restarts import Outcome
from entrypoint.run_folder import RunFolder, last_lines, note_json, read_json

_HERE = Path(__file__).resolve().parent
_POLL_SECONDS = 0.2
_DUMP_SECONDS = 8.0  # a little more than the keepers take (worker.py)
_LINGER_SECONDS = 5.0  # torch's agent ends in less when its processes have
_PR_SET_CHILD_SUBREAPER = 36
KILLED = 128 + signal.SIGKILL


class StopRequest:
    """SIGTERM, Ctrl-C or the stop file: save and leave. A second Ctrl-C, or SIGQUIT, does not wait for the saving."""

    def __init__(self, stop_file: Path, grace_seconds: float, say: Callable[[str], None]) -> None:
        self._stop_file, self._grace_seconds, self._say = stop_file, grace_seconds, say
        self._signals: list[int] = []
        self._looked_at = 0.0
        self.asked_at: float | None = None
        self.by_signal = self.now = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    @property
    def late(self) -> bool:
        return self.asked_at is not None and time.monotonic() - self.asked_at >= self._grace_seconds

    def look(self) -> bool:
        """Whether somebody wants the training to stop; called in the agent's loop, which alone may say something."""
        while self._signals:
            number = self._signals.pop(0)
            self.now |= number == signal.SIGQUIT or (number == signal.SIGINT and self.asked_at is not None)
            self._ask(by_signal=True)
        if time.monotonic() - self._looked_at >= 1.0:  # a stat on a network volume is not free
            self._looked_at = time.monotonic()
            if self._stop_file.exists():
                self._ask(by_signal=False)
        return self.asked_at is not None

    def _ask(self, *, by_signal: bool) -> None:
        self.by_signal |= by_signal
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            self._say(f"stopping: the training has {self._grace_seconds:g} s to save (TRAIN_GRACE)")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


@dataclass(frozen=True, slots=True)
class Launch:
    """What is the same for each attempt of a start."""

    folder: RunFolder
    launcher: Launcher
    grace_seconds: float
    beat: Callable[[], bool]
    say: Callable[[str], None]
    hang_seconds: float | None = None  # None: liveness's own


def run_attempt(launch: Launch, number: int, environment: dict[str, str], stop: StopRequest) -> Outcome:
    """Start the launcher's child, watch it to its end, and say how that was; failure.json where it was a failure."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the training leaves behind comes to us
    logs = launch.folder.attempt(number)
    logs.mkdir(parents=True, exist_ok=True)
    for told in logs.glob(f"n{launch.folder.node}r*.json"):  # several nodes use one number so far
        told.unlink()
    if not launch.folder.node:
        launch.folder.step.unlink(missing_ok=True)
    name = f"launcher-n{launch.folder.node}"
    (logs / f"{name}.json").unlink(missing_ok=True)
    command = _child_command(launch.launcher, logs, logs / f"{name}.json")
    with open(logs / f"{name}.log", "ab") as log:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    watch = _Watch(launch, logs, child, stop)
    ending = watch.to_the_end()
    end_descendants()
    watch.see_step()
    return _outcome(launch, number, child.returncode, ending, stop, stepped=watch.liveness.stepped)


def _child_command(launcher: Launcher, logs: Path, outcome: Path) -> list[str]:
    """torchrun's words through its launcher API; another launcher itself, with our keeper around each process."""
    name, *words = launcher.words
    if name == "torchrun":
        return [sys.executable, "-P", str(_HERE / "elastic.py"), str(outcome), str(logs), *words, *launcher.target]
    program = [sys.executable if word == "python" and not at else word for at, word in enumerate(launcher.program)]
    keeper = ["--no_python", sys.executable, "-P", str(_HERE / "worker.py"), str(logs), *program]
    module = {"accelerate": "accelerate.commands.launch", "deepspeed": "deepspeed.launcher.runner"}[name]
    return [sys.executable, "-m", module, *(word for word in words if word != "launch"), *keeper]


class _Watch:
    """An attempt while it runs. What ends it from our side is told as a sentence."""

    def __init__(self, launch: Launch, logs: Path, child: "subprocess.Popen[bytes]", stop: StopRequest) -> None:
        self.liveness = Liveness(launch.hang_seconds)
        self._launch, self._logs, self._child, self._stop = launch, logs, child, stop
        self._passed_to: set[int] = set()
        self._ended_at: float | None = None

    def to_the_end(self) -> str | None:
        """Wait for the end; None: it came by itself, or in the time that a request gives."""
        while self._child.poll() is None:
            if ending := self._must_end():
                _kill(self._child.pid)
                self._child.wait()
                return ending
            self.see_step()
            collect_orphans(self._child.pid)
            time.sleep(_POLL_SECONDS)
        return None

    def see_step(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            stamp = self._launch.folder.step.stat().st_mtime
            self.liveness.see(self._launch.folder.current_step(), stamp)

    def _must_end(self) -> str | None:
        if not self._launch.beat():
            return "killed: another launcher has taken this run's lock; this machine must have slept"
        if self._stop.look():
            return self._pass_on_request()
        if (seconds := self.liveness.stuck_for()) is not None and not self._saves():
            return self._dump_stacks(seconds)
        return None

    def _pass_on_request(self) -> str | None:
        if self._stop.now:
            return "killed at once, as asked"
        if self._stop.late:
            seconds = self._launch.grace_seconds
            return f"killed: the training was not gone {seconds:g} s after the request to stop (TRAIN_GRACE)"
        keepers = self._keepers()
        if not keepers or self._only_torch_is_left():
            _kill(self._child.pid)  # nothing has begun, so nothing is to be saved; or nothing is left
        if self._stop.by_signal:
            for pid in keepers - self._passed_to:
                self._passed_to.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        return None

    def _only_torch_is_left(self) -> bool:
        """All processes of this node have ended, and torch's agent waits for other nodes (300 s, were it up to it)."""
        if not _all_have_ended(self._logs, self._launch.folder.node):
            return False
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() - self._ended_at > _LINGER_SECONDS

    def _saves(self) -> bool:
        """A checkpoint is being written: its files change. A long save is no hang."""
        newest = 0.0
        for path in self._launch.folder.checkpoints.rglob("*"):
            with contextlib.suppress(OSError):
                newest = max(newest, path.stat().st_mtime)
        if time.time() - newest > self.liveness.bound:
            return False
        self.liveness.alive()
        return True

    def _dump_stacks(self, seconds: float) -> str:
        text = f"hang: no new step for {seconds:.0f} s; stacks of all ranks are in {self._logs}/*.stacks"
        self._launch.say(text)
        for pid in self._keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + _DUMP_SECONDS
        while self._child.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return text

    def _keepers(self) -> set[int]:
        told = (read_json(path) for path in self._logs.glob(f"n{self._launch.folder.node}r*.started.json"))
        return {one["pid"] for one in told if one}


def collect_orphans(ours: int) -> None:
    """The training's orphans come to us; as zombies they would fill the pid limit in days. `ours` waits for poll."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != ours:
            os.waitpid(ended.si_pid, 0)


def end_descendants() -> None:
    """Kill whatever is left of the attempt, and collect it. As their subreaper we see all of them."""
    while children := psutil.Process().children(recursive=True):
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
        if len(alive) == len(children):  # stuck in the kernel: on a device or a mount
            return


def _outcome(
    launch: Launch, number: int, child_code: int, ending: str | None, stop: StopRequest, *, stepped: bool
) -> Outcome:
    logs, node = launch.folder.attempt(number), launch.folder.node
    all_ended = read_ended(logs, node)
    if ending is not None:
        _write_failure(launch, number, KILLED, ending, all_ended)
        return Outcome(KILLED, ending, stepped, by_itself=False, ours=stop.asked_at is not None)
    first = first_to_fail(all_ended, fine=(0, STOPPED))
    if first is not None:
        note_json(launch.folder.of_node("failure.json"), describe(first, number))
        return Outcome(
            first.exit_code, sentence(first), stepped, by_itself=_by_itself(first), ours=stop.asked_at is not None
        )
    stopped = any(ended.exit_code == STOPPED for ended in all_ended)
    if stopped or (stop.asked_at is not None and child_code != 0 and _all_have_ended(logs, node)):
        return Outcome(STOPPED, stepped=stepped, ours=True)
    if all_ended and child_code == 0:
        return Outcome(0, stepped=stepped)
    code = 128 - child_code if child_code < 0 else child_code or OWN_BUG
    text = f"the launcher itself ended with {code}"
    _write_failure(launch, number, code, text, all_ended)
    return Outcome(code, text, stepped, by_itself=False)


def _all_have_ended(logs: Path, node: int) -> bool:
    return len(list(logs.glob(f"n{node}r*.started.json"))) == len(list(logs.glob(f"n{node}r*.ended.json")))


def _by_itself(first: Ended) -> bool:
    """By its own doing; SIGKILL comes from outside (the kernel's memory killer, a person, a platform)."""
    return first.exit_code != KILLED


def _write_failure(launch: Launch, number: int, code: int, text: str, all_ended: tuple[Ended, ...]) -> None:
    """For what no process of the training did by itself: its end came from us, or the launcher broke."""
    launcher_log = launch.folder.attempt(number) / f"launcher-n{launch.folder.node}.log"
    document = {
        "node": launch.folder.node,
        "rank": None,
        "attempt": number,
        "exit_code": code,
        "signal": "SIGKILL" if code == KILLED else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "text": text,
        "lines": list(last_lines(launcher_log, 20)),
        "ranks": {ended.rank: ended.exit_code for ended in all_ended},
    }
    note_json(launch.folder.of_node("failure.json"), document)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
