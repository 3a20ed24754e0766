"""One attempt: a fresh launch of this node's processes, watched to its end, with nothing left behind."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import psutil

from entrypoint.diagnosis import Trial
from entrypoint.errors import OWN_BUG, STOPPED
from entrypoint.failure import Ended, describe, first_to_fail, read_ended, sentence, timed_out
from entrypoint.launchers import Launcher
from entrypoint.liveness import HANG_SECONDS, Liveness
from entrypoint.nccl_log import compare, parse_nccl_log
from entrypoint.network import Network
from entrypoint.reasons import Finding
from entrypoint.restarts import Outcome
from entrypoint.run_folder import RunFolder, last_lines, note_json, read_json, write_json
from entrypoint.tally import KILLED, Report
from entrypoint.traces import explain_folder, hung_at_first_collective

_HERE = Path(__file__).resolve().parent
_POLL_SECONDS = 0.2
_DUMP_SECONDS = 8.0  # a little more than the keepers take (worker.py)
_FAULT_SECONDS = 2.0  # from another node's fault to SIGKILL
_LINGER_SECONDS = 5.0  # torch's agent ends in less when its processes have
_PR_SET_CHILD_SUBREAPER = 36


class StopRequest:
    """SIGTERM, Ctrl-C or the stop file: save and leave. A second Ctrl-C, or SIGQUIT, does not wait for the saving.

    Of several nodes only node 0 looks at the file: it takes away one that an earlier run left, others may see it still.
    """

    def __init__(self, stop_file: Path | None, grace_seconds: float, say: Callable[[str], None]) -> None:
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
        if self._stop_file and time.monotonic() - self._looked_at >= 1.0:  # a stat on a network volume is not free
            self._looked_at = time.monotonic()
            if self._stop_file.exists():
                self._ask(by_signal=False)
        return self.asked_at is not None

    def hear(self, text: str, *, by_signal: bool) -> None:
        """Another node was asked to stop: so is this one, in the same way, since training is collective."""
        self._say(f"asked to stop by {text}")
        self._ask(by_signal=by_signal)

    def _ask(self, *, by_signal: bool) -> None:
        self.by_signal |= by_signal
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            self._say(f"stopping: the training has {self._grace_seconds:g} s to save (TRAIN_GRACE)")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


@dataclass(frozen=True, slots=True)
class End:
    """Why it ended elsewhere."""

    text: str
    hang: bool = False


class Others:
    """What an attempt hears from the other nodes, and tells them. This one is for a node that has none."""

    def must_end(self) -> End | None:
        """Set: the attempt has ended elsewhere."""
        return None

    def failing(self, text: str) -> None:
        """A process of this node has failed; its node is still collecting what is left."""

    def hang(self, text: str) -> None:
        """No step is made any more; the stacks of all nodes are wanted."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is the same for each attempt of a start."""

    folder: RunFolder
    launcher: Launcher
    grace_seconds: float
    beat: Callable[[], bool]
    say: Callable[[str], None]
    hang_seconds: float | None = None  # None: liveness's own
    others: Others = field(default_factory=Others)
    network: Network | None = None  # what NCCL's own words are compared with; None: one node, where any will do
    trial: Trial | None = None


def run_attempt(launch: Launch, number: int, environment: dict[str, str], stop: StopRequest) -> Report:
    """Start the launcher's child, watch it to its end, and say how that was; failure.json where it was a failure."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the training leaves behind comes to us
    logs = launch.folder.attempt(number)
    logs.mkdir(parents=True, exist_ok=True)
    if not launch.folder.node:
        launch.folder.step.unlink(missing_ok=True)
    name = f"launcher-n{launch.folder.node}"
    command = _child_command(launch.launcher, logs, logs / f"{name}.json")
    with open(logs / f"{name}.log", "ab") as log:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    watch = _Watch(launch, logs, child, stop)
    ending = watch.to_the_end()
    end_descendants()
    watch.sweep()
    watch.see_step()
    watch.audit()
    if watch.ended_for is not None:
        return _ended_for_others(launch, number, watch.ended_for, stepped=watch.liveness.stepped)
    return _report(launch, number, child.returncode, ending, stop, stepped=watch.liveness.stepped or watch.came_through)


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
        self.ended_for: End | None = None
        self.came_through = False
        self._launch, self._logs, self._child, self._stop = launch, logs, child, stop
        self._passed_to: set[int] = set()
        self._ended_at: float | None = None
        self._looked_at = 0.0
        self._told_failing = self._audited = False
        self._told_bound = HANG_SECONDS
        self._began_at = time.monotonic()

    def to_the_end(self) -> str | None:
        """Wait for the end; None: it came by itself, or in the time that a request gives."""
        while self._child.poll() is None:
            if ending := self._must_end():
                _kill(self._child.pid)
                self._child.wait()
                return ending
            self.see_step()
            if self.liveness.stepped:
                self.audit()
            collect_orphans(self._child.pid)
            self._tell_failing()
            time.sleep(_POLL_SECONDS)
        return None

    def _tell_failing(self) -> None:
        """The other nodes are to know of a failure before torch's agent here has ended the rest of this node."""
        if self._told_failing or time.monotonic() - self._looked_at < 1.0:  # a look at a network volume is not free
            return
        self._looked_at = time.monotonic()
        first = first_to_fail(read_ended(self._logs, self._launch.folder.node), fine=(0, STOPPED))
        if first is not None:
            self._told_failing = True
            self._launch.others.failing(sentence(first))

    def see_step(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            stamp = self._launch.folder.step.stat().st_mtime
            self.liveness.see(self._launch.folder.current_step(), stamp)
            self._tell_bound()

    def _tell_bound(self) -> None:
        """For the container's health check, which has not seen the steps."""
        bound = self.liveness.bound
        if abs(bound - self._told_bound) > 0.1 * self._told_bound:
            self._told_bound = bound
            with contextlib.suppress(OSError):
                write_json(self._launch.folder.of_node("liveness.json"), {"bound_seconds": round(bound, 1)})

    def audit(self) -> None:
        """Once, when NCCL has certainly said which way it sends: warn if it is not the planned one."""
        network, self._audited = (None if self._audited else self._launch.network), True
        for finding in audit(self._logs / f"n{self._launch.folder.node}.nccl", network) if network else ():
            self._launch.say(f"warn  {finding.text}")
            if finding.fix:
                self._launch.say(f"      fix: {finding.fix}")

    def _must_end(self) -> str | None:
        if not self._launch.beat():
            return "killed: another launcher has taken this run's lock; this machine must have slept"
        if (end := self._launch.others.must_end()) is not None:
            return self._end_for_others(end)
        if self._stop.look():
            return self._pass_on_request()
        if self._launch.folder.node:
            return None  # node 0 judges for all: the step file of another node may be seen late
        if (trial := self._launch.trial) and self._is_past(trial):
            self.came_through = True
            return f"end of the trial: with {trial.switch}=1 the first collective came through"
        if (seconds := self.liveness.stuck_for()) is not None and not self._saves():
            text = f"hang: no new step for {seconds:.0f} s; stacks of all ranks are in {self._logs}/*.stacks"
            self._launch.others.hang(text)
            self._dump_stacks(text)
            told = explain_folder(self._logs)
            return f"{text}; {told}" if told else text
        return None

    def _is_past(self, trial: Trial) -> bool:
        return self.liveness.stepped or time.monotonic() - self._began_at > trial.seconds

    def _end_for_others(self, end: End) -> str:
        """A little time in which processes that fail by themselves can say why; they cannot be asked to save."""
        self.ended_for = end
        if end.hang:
            return self._dump_stacks(end.text)
        self._launch.say(f"this attempt ends: {end.text}")
        until = time.monotonic() + _FAULT_SECONDS
        while self._child.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return end.text

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

    def _dump_stacks(self, text: str) -> str:
        self._launch.say(text)
        for pid in self._keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + _DUMP_SECONDS
        while self._child.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return text

    def sweep(self) -> None:
        """Remove what keepers that were killed have left in the temporary folder (worker.py)."""
        for pid in self._keepers():
            for folder in Path(tempfile.gettempdir()).glob(f"roundhouse-{pid}-*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _keepers(self) -> set[int]:
        told = (read_json(path) for path in self._logs.glob(f"n{self._launch.folder.node}r*.started.json"))
        return {one["pid"] for one in told if one}


def audit(nccl_log: Path, network: Network) -> list[Finding]:
    """What NCCL's first lines say otherwise than the plan; a name from outside that won was told of already."""
    try:
        text = nccl_log.read_text(errors="replace")
    except OSError:  # no GPUs, or a person sent the lines elsewhere
        return []
    ours = any(setting.name == "NCCL_SOCKET_IFNAME" for setting in network.settings)
    return list(compare(parse_nccl_log(text), network.interfaces if ours else (), network.rdma.hcas))


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


def _report(
    launch: Launch, number: int, child_code: int, ending: str | None, stop: StopRequest, *, stepped: bool
) -> Report:
    logs, node = launch.folder.attempt(number), launch.folder.node
    all_ended = read_ended(logs, node)
    ours = stop.asked_at is not None
    if ending is not None:
        _write_failure(launch, number, KILLED, ending, all_ended)
        return Report(Outcome(KILLED, ending, stepped, by_itself=False, ours=ours))
    first = first_to_fail(all_ended, fine=(0, STOPPED))
    if first is not None:
        hung = timed_out(first)
        first = replace(first, note=explain_folder(logs) or "") if hung else first
        note_json(launch.folder.of_node("failure.json"), describe(first, number))
        outcome = Outcome(first.exit_code, sentence(first), stepped, _by_itself(first), ours)
        return Report(replace(outcome, first_collective=hung and hung_at_first_collective(logs)), (first,))
    stopped = any(ended.exit_code == STOPPED for ended in all_ended)
    if stopped or (ours and child_code != 0 and _all_have_ended(logs, node)):
        return Report(Outcome(STOPPED, stepped=stepped, ours=True))
    if all_ended and child_code == 0:
        return Report(Outcome(0, stepped=stepped))
    code = 128 - child_code if child_code < 0 else child_code or OWN_BUG
    text = f"the launcher itself ended with {code}"
    _write_failure(launch, number, code, text, all_ended)
    return Report(Outcome(code, text, stepped, by_itself=False))


def _ended_for_others(launch: Launch, number: int, end: End, *, stepped: bool) -> Report:
    """Blames nobody here, unless a process of this node was the first of all to fail."""
    first = None
    if not end.hang:
        first = first_to_fail(read_ended(launch.folder.attempt(number), launch.folder.node), fine=(0, STOPPED))
    outcome = Outcome(KILLED, end.text, stepped, by_itself=False)
    return Report(outcome, () if first is None else (first,), for_others=True)


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
