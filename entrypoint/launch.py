"""Plan → running processes → an honest exit code. The rim that starts and stops things."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from entrypoint import report
from entrypoint.environment import stale_variables
from entrypoint.errors import OWN_BUG, STOPPED, MachineError, SettingError
from entrypoint.plan import Directories, Plan
from entrypoint.screen import LogTail, Screen

_HERE = Path(__file__).resolve().parent
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended: the exit code, and of the process that failed first its log's name and message."""

    exit_code: int
    first: str | None = None
    text: str | None = None


def run(plan: Plan, variables: Mapping[str, str]) -> int:
    """Run the plan's recipe on this node to its end; the exit code is the training's own."""
    directories = _prepare(plan)
    environment = child_environment(plan, variables, directories)
    if plan.process_rank is not None:
        _become(plan, environment)
    outcome = _attend(plan, environment, directories)
    told = {"exit_code": outcome.exit_code, "text": outcome.text}
    try:
        _write(directories.run / _of_node("exit.json", plan), json.dumps(told) + "\n")
    except OSError as error:  # a full volume, often the very reason why training ended: its own code is what counts
        print(f"exit.json could not be written: {error.strerror}", file=sys.stderr)
    return outcome.exit_code


def child_environment(plan: Plan, variables: Mapping[str, str], directories: "RunDirectories") -> dict[str, str]:
    """What the launcher and the training processes see: what came in, without stale ranks, plus our settings.

    One process of many keeps all of it: torch's agent, for one, told it where its store is.
    """
    stale = set(stale_variables(variables)) if plan.process_rank is None else set()
    environment = {name: value for name, value in variables.items() if name not in stale}
    environment |= {setting.name: setting.value for setting in plan.settings}
    environment |= {
        "TRAIN_RUN_DIR": str(directories.run),
        "TRAIN_CHECKPOINT_DIR": str(directories.checkpoints),
        "TRAIN_ATTEMPT": "0",
        "TRAIN_STEP_FILE": str(directories.run / "step"),
        "TRAIN_STOP_FILE": str(directories.run / "stop"),
        "PYTHONUNBUFFERED": "1",
    }
    return environment


@dataclass(frozen=True, slots=True)
class RunDirectories:
    """The folders of a run, all of them there."""

    run: Path
    checkpoints: Path
    logs: Path


def _prepare(plan: Plan) -> RunDirectories:
    """Make the run's folders and write plan.json; an earlier start's stop file and end are taken away."""
    stops = [finding for finding in plan.findings if finding.level == "stop"]
    if stops:
        raise MachineError(stops[0].text, fix=stops[0].fix)
    if plan.recipe and plan.recipe.script and not plan.recipe.script.is_file():
        raise SettingError(f"{plan.recipe.script}: no such file", fix="correct the path in TRAIN_SCRIPT")
    directories = _named(plan.directories)
    try:
        for folder in (directories.run, directories.checkpoints, directories.logs):
            folder.mkdir(parents=True, exist_ok=True)
        if not plan.cluster.node_rank:
            (directories.run / "stop").unlink(missing_ok=True)
        (directories.run / _of_node("exit.json", plan)).unlink(missing_ok=True)
        _write(directories.run / _of_node("plan.json", plan), report.to_json(plan) + "\n")
    except OSError as error:
        raise MachineError(
            f"{error.filename}: {error.strerror}", fix="TRAIN_VOLUME must name a folder that this user may write"
        ) from None
    return directories


def _named(directories: Directories) -> RunDirectories:
    if directories.run is None or directories.checkpoints is None or directories.logs is None:
        raise SettingError("nothing to train was named", fix="set TRAIN_SCRIPT, or `train RECIPE`")
    return RunDirectories(directories.run, directories.checkpoints, directories.logs)


def _become(plan: Plan, environment: dict[str, str]) -> None:
    """One process of many that somebody else started: be the script."""
    name, *arguments = plan.command
    program = sys.executable if name == "python" else name
    os.execvpe(program, [program, *arguments], environment)


def _attend(plan: Plan, environment: dict[str, str], directories: RunDirectories) -> Outcome:
    """Start the launcher's child, show what it writes, pass requests to stop on, and say how it ended."""
    with tempfile.TemporaryDirectory() as own_disk:  # the volume may be full, or gone, by the time there is an outcome
        return _attend_until(Path(own_disk, "outcome.json"), plan, environment, directories)


def _attend_until(outcome_file: Path, plan: Plan, environment: dict[str, str], directories: RunDirectories) -> Outcome:
    tail = LogTail(directories.logs, plan.cluster.node_rank)
    command = [
        *(sys.executable, "-P", str(_HERE / "elastic.py")),
        *(str(outcome_file), str(directories.logs), str(plan.grace_seconds)),
        *plan.command[1:],
    ]
    log = directories.logs / f"n{plan.cluster.node_rank or 0}.log"
    with Screen(sys.stdout, directories.run / "metrics.jsonl") as screen, open(log, "ab") as its_own:
        # A session of its own: Ctrl-C reaches this process alone, which asks the training to stop. A log of its own:
        # what it writes would tear the bar on a terminal.
        child = subprocess.Popen(command, env=environment, stdout=its_own, stderr=its_own, start_new_session=True)
        request = _StopRequest(child, plan.grace_seconds, screen)
        while child.poll() is None:
            _show(tail.lines(), screen)
            screen.tick()
            time.sleep(_POLL_SECONDS)
        _show(tail.drain(), screen)
        screen.tick()
    _end_group(child.pid)
    outcome = _outcome(outcome_file, child.returncode, plan, request.asked_at)
    if outcome.text:
        _tell(outcome, tail)
    return outcome


class _StopRequest:
    """SIGTERM, and Ctrl-C, on their way to the training; a second Ctrl-C does not wait."""

    def __init__(self, child: "subprocess.Popen[bytes]", grace_seconds: int, screen: Screen) -> None:
        self._child, self._grace_seconds, self._screen = child, grace_seconds, screen
        self.asked_at: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            self._screen.line(f"stopping: the training has {self._grace_seconds} s to save (TRAIN_GRACE)")
            self._child.send_signal(signal.SIGTERM)
        elif number == signal.SIGINT:
            _end_group(self._child.pid)


def _show(lines: Any, screen: Screen) -> None:
    for rank, line in lines:
        screen.line(f"[{rank}] {line}")


def _outcome(path: Path, child_code: int, plan: Plan, asked_at: float | None) -> Outcome:
    late = asked_at is not None and time.monotonic() - asked_at >= plan.grace_seconds
    if late:
        text = f"killed: the training was not gone {plan.grace_seconds} s after the request to stop (TRAIN_GRACE)"
        return Outcome(128 + signal.SIGKILL, text=text)
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError):  # the child died before it could tell: its own end is all there is
        code = 128 - child_code if child_code < 0 else child_code or OWN_BUG
        if asked_at is not None:
            return Outcome(code, text="killed by a second Ctrl-C: what was not saved by then is lost")
        return Outcome(code, text=f"the launcher itself ended with {code}")
    if told.get("stopped"):
        return Outcome(STOPPED)
    if told["exit_code"] == 0:
        return Outcome(0)
    node, code = plan.cluster.node_rank or 0, told["exit_code"]
    if code == STOPPED:  # by the stop file: the processes leave with it themselves
        return Outcome(code)
    here = " on this node" if plan.cluster.nodes > 1 else ""  # what happened elsewhere, torch's agent does not know
    text = f"first to fail{here}: node {node} rank {told['rank']}, exit code {code}"
    return Outcome(code, f"n{node}r{told['local_rank']}", text)


def _tell(outcome: Outcome, tail: LogTail) -> None:
    """The last words on the screen are the first failing process's own, also where others complained after it."""
    if outcome.first:
        for line in tail.recent(outcome.first):
            print(f"[{outcome.first}] {line}", file=sys.stderr)
    print(outcome.text, file=sys.stderr, flush=True)


def _end_group(pid: int) -> None:
    """End what is left of the child's own process group; training processes also die with it (worker.py)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _of_node(name: str, plan: Plan) -> str:
    """plan.json on node 0, plan-n3.json on node 3: all nodes write into one folder."""
    stem, _, suffix = name.partition(".")
    return f"{stem}-n{plan.cluster.node_rank}.{suffix}" if plan.cluster.node_rank else name


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")  # other processes may be writing it too
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
