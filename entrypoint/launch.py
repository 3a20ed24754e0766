"""Plan → attempts → an honest exit code. What is decided here for one node is what node 0 will decide for all."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint import report, scripts
from entrypoint.attempt import Launch, StopRequest, run_attempt
from entrypoint.environment import stale_variables
from entrypoint.errors import STOPPED, MachineError, SettingError, StuckError
from entrypoint.plan import Plan
from entrypoint.restarts import Decision, Outcome, decide, in_a_row, refusal
from entrypoint.run_folder import RunFolder, note_json, read_json, write_text
from entrypoint.run_lock import RunLock, take

HANG_SECONDS: float | None = None  # tests shorten it


@dataclass(frozen=True, slots=True)
class Start:
    """A run that may be trained now: its folder is there, and nobody else trains it."""

    plan: Plan
    folder: RunFolder
    lock: RunLock | None  # None: this node does not know its number yet
    finished: str | None = None  # set: there is nothing to do, and why

    @property
    def wanted(self) -> list[str]:
        recipe = self.plan.recipe
        return [*recipe.target, *recipe.arguments] if recipe else []


def folder_of(plan: Plan) -> RunFolder:
    if plan.directories.run is None:
        raise SettingError("nothing to train was named", fix="set TRAIN_SCRIPT, or `train RECIPE`")
    return RunFolder(plan.directories.run, plan.cluster.node_rank or 0)


def is_numbered(plan: Plan) -> bool:
    """Whether this node knows which one it is; else the roll call will tell."""
    return plan.cluster.nodes == 1 or plan.cluster.node_rank is not None


def check_plan(plan: Plan) -> None:
    """What forbids the start: the first finding of level stop, or no script."""
    stops = [finding for finding in plan.findings if finding.level == "stop"]
    if stops:
        raise MachineError(stops[0].text, fix=stops[0].fix)
    folder_of(plan)
    if plan.recipe:
        scripts.refuse_missing(plan.recipe)


def open_run(plan: Plan, say: Callable[[str], None]) -> Start:
    """Take the run's lock and make its folder; a Problem where it may not be trained, or not now."""
    folder = folder_of(plan)
    lock = take(folder.lock, say=say) if is_numbered(plan) else None
    start = Start(plan, folder, lock)
    if plan.cluster.nodes == 1 and (ended := read_json(folder.of_node("exit.json"))) and ended["exit_code"] == 0:
        if plan.again:
            _put_aside(folder.path)
        elif ended.get("command") == start.wanted:
            why = f"{folder.path.name} has finished, see {folder.path}; TRAIN_AGAIN=1 trains it again"
            return Start(plan, folder, lock, finished=why)
    _make_folders(plan, folder)
    folder.of_node("exit.json").unlink(missing_ok=True)
    return start


def _make_folders(plan: Plan, folder: RunFolder) -> None:
    """The run's folders and plan.json; a stop file of an earlier start is taken away."""
    try:
        for path in (folder.path, folder.checkpoints, folder.logs):
            path.mkdir(parents=True, exist_ok=True)
        if not folder.node:
            folder.stop.unlink(missing_ok=True)
        write_text(folder.of_node("plan.json"), report.to_json(plan) + "\n")
    except OSError as error:
        raise MachineError(
            f"{error.filename}: {error.strerror}", fix="TRAIN_VOLUME must name a folder that this user may write"
        ) from None


def train(start: Start, variables: Mapping[str, str], *, by_hand: bool = False) -> int:
    """Attempts until one reaches the end or none may follow; exit.json tells how it ended, also of a Problem.

    `by_hand`: a person started it, who has seen the earlier failures: their count begins anew.
    """
    agent = _Agent(start, variables)
    try:
        decision = agent.attempts(by_hand=by_hand)
    except StuckError as problem:
        decision = Decision(None, problem.exit_code, f"error: {problem}")
    document = {
        "exit_code": decision.exit_code,
        "text": decision.text,
        "command": start.wanted,
        "attempt": agent.number,
        "step": start.folder.current_step(),
        "ended_at": time.time(),
    }
    note_json(start.folder.of_node("exit.json"), document)
    if start.lock:
        start.lock.release()
    return decision.exit_code


def become(plan: Plan, variables: Mapping[str, str]) -> None:
    """One process of many that somebody else started: be the script."""
    check_plan(plan)
    folder = folder_of(plan)
    _make_folders(plan, folder)
    environment = child_environment(plan, variables, folder, attempt=0)
    python = plan.recipe is None or plan.recipe.interpreter is None
    command = [sys.executable, *plan.command[1:]] if python else list(plan.command)
    os.execvpe(command[0], command, environment)


def child_environment(plan: Plan, variables: Mapping[str, str], folder: RunFolder, *, attempt: int) -> dict[str, str]:
    """What the launcher and the training processes see: what came in, without stale ranks, plus our settings.

    One process of many keeps all of it: torch's agent, for one, told it where its store is.
    """
    stale = set(stale_variables(variables)) if plan.process_rank is None else set()
    environment = {"PYTHONFAULTHANDLER": "1"}  # a crash in native code, and a hang, tell where
    environment |= {name: value for name, value in variables.items() if name not in stale}
    environment |= {setting.name: setting.value for setting in plan.settings}
    environment |= {
        "TRAIN_RUN_DIR": str(folder.path),
        "TRAIN_CHECKPOINT_DIR": str(folder.checkpoints),
        "TRAIN_ATTEMPT": str(attempt),
        "TRAIN_STEP_FILE": str(folder.step),
        "TRAIN_STOP_FILE": str(folder.stop),
        "PYTHONUNBUFFERED": "1",
    }
    return environment


class _Agent:
    """The attempts of one start, and what the volume remembers of all."""

    def __init__(self, start: Start, variables: Mapping[str, str]) -> None:
        assert start.plan.launcher is not None  # one process of many has none, and becomes the script
        self._plan, self._folder, self._variables = start.plan, start.folder, variables
        self._alone = start.plan.cluster.nodes == 1
        self._history: list[dict[str, Any]] = read_json(start.folder.path / "attempts.json") or []
        self.number = 0
        self._stop = StopRequest(start.folder.stop, start.plan.grace_seconds, self.say)
        self._launch = Launch(
            start.folder,
            start.plan.launcher,
            start.plan.grace_seconds,
            start.lock.beat if start.lock else lambda: True,
            self.say,
            HANG_SECONDS,
        )

    def attempts(self, *, by_hand: bool) -> Decision:
        if self._alone and not by_hand:
            self._refuse_more()
        while True:
            self._begin(anew=by_hand)
            by_hand = False
            environment = child_environment(self._plan, self._variables, self._folder, attempt=self.number)
            outcome = run_attempt(self._launch, self.number, environment, self._stop)
            decision = self._end(outcome)
            if decision.delay is None:
                return decision
            self.say(f"{outcome.text}; starting again in {decision.delay:.0f} s ({self._counted()})")
            if not self._wait(decision.delay):
                return Decision(None, STOPPED, "stopped between two attempts; start it again to go on")

    def say(self, text: str) -> None:
        """A line for whoever watches: the screen follows this file as it follows the processes' own."""
        try:
            with open(self._folder.agent_log, "a") as stream:
                stream.write(f"{text}\n")
        except OSError:  # a full volume: the training may still go on
            print(text, file=sys.stderr)

    def _begin(self, *, anew: bool) -> None:
        if not self._alone:
            return  # the number is the same on all nodes, and nobody has agreed on another yet
        taken = [record["attempt"] for record in self._history] + self._folder.attempts()
        self.number = max(taken, default=-1) + 1
        record = {"attempt": self.number, "began_at": time.time(), "exit_code": None, "anew": anew}
        self._history.append(record | {"checkpoint": self._folder.newest_checkpoint()})
        self._remember()

    def _end(self, outcome: Outcome) -> Decision:
        if not self._alone:
            return Decision(None, outcome.exit_code, outcome.text)
        self._history[-1] |= {"ended_at": time.time(), "exit_code": outcome.exit_code}
        self._remember()
        decision = decide(outcome, self._failures(), self._plan.restarts)
        if decision.delay is None and decision.exit_code == StuckError.exit_code != outcome.exit_code:
            raise self._stuck(outcome.exit_code)
        return decision

    def _refuse_more(self) -> None:
        last = self._history[-1]["exit_code"] if self._history else None
        if refusal(self._failures(), self._plan.restarts, last):
            raise self._stuck(last)

    def _stuck(self, last_code: int | None) -> StuckError:
        return StuckError(
            refusal(self._failures(), self._plan.restarts, last_code) or "no progress",
            fix=f"correct what {self._folder.path}/failure.json tells, then remove attempts.json beside it",
        )

    def _failures(self) -> int:
        return in_a_row(self._history, self._folder.newest_checkpoint())

    def _counted(self) -> str:
        return f"{self._failures()} of {self._plan.restarts} attempts without a new checkpoint"

    def _remember(self) -> None:
        note_json(self._folder.path / "attempts.json", self._history[-1000:])

    def _wait(self, seconds: float) -> bool:
        """False: a request to stop came meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._launch.beat()
            if self._stop.look():
                return False
            time.sleep(0.2)
        return True


def _put_aside(run: Path) -> None:
    """The finished run becomes name.1, or the next number that is free; nothing is deleted."""
    number = 1
    while (aside := run.with_name(f"{run.name}.{number}")).exists():
        number += 1
    os.rename(run, aside)
