"""Plan → attempts → an honest exit code: alone, or as one of several nodes for which node 0 decides."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from entrypoint import joint, meeting, report, scripts, shells
from entrypoint.attempt import Launch, StopRequest, run_attempt
from entrypoint.environment import stale_variables
from entrypoint.errors import STOPPED, MachineError, Problem, SettingError
from entrypoint.history import History
from entrypoint.masks import mask_words, secrets_of
from entrypoint.node_setup import set_up
from entrypoint.plan import Draft, Plan, Settled
from entrypoint.reception import can_listen
from entrypoint.restarts import Decision
from entrypoint.run_folder import RunFolder, note_json, read_json, write_json, write_text
from entrypoint.run_lock import RunLock, hold, living_holder, take

HANG_SECONDS: float | None = None  # tests shorten it
_SECRETS = ("TRAIN_TOKEN",)  # ours alone: the training has no use for them


@dataclass(frozen=True, slots=True)
class Start:
    """A run that may be trained now: its folder is there, and nobody else trains it."""

    plan: Plan
    draft: Draft
    folder: RunFolder
    lock: RunLock | None  # None: of a node other than 0, on a volume without locks
    finished: str | None = None  # set: there is nothing to do, and why

    @property
    def wanted(self) -> list[str]:
        """What is trained, as it is remembered: without secrets."""
        recipe = self.plan.recipe
        return mask_words([*recipe.target, *recipe.arguments], secrets_of(self.draft.variables)) if recipe else []


def folder_of(plan: Plan) -> RunFolder:
    if plan.directories.run is None:
        raise SettingError("nothing to train was named", fix="set TRAIN_SCRIPT, or `train RECIPE`")
    return RunFolder(plan.directories.run, plan.cluster.node_rank or 0)


def numbered(plan: Plan, draft: Draft, say: Callable[[str], None]) -> Plan:
    """The plan with a rank: of nodes that are told none, the one with the primary's address gives the others theirs."""
    if plan.cluster.nodes == 1 or plan.cluster.node_rank is not None or plan.roll_call is None:
        return plan
    check_plan(plan)
    if joint.is_primary(plan, draft.facts):
        return draft.plan(Settled(node_rank=0))
    seat = joint.seat_of(plan, draft.facts, folder_of(plan), _token(draft))
    return draft.plan(Settled(node_rank=asyncio.run(meeting.number(seat, say))))


def _token(draft: Draft) -> str | None:
    return draft.request.token


def check_plan(plan: Plan) -> None:
    """What forbids the start: the first finding of level stop, or no script."""
    stops = [finding for finding in plan.findings if finding.level == "stop"]
    if stops:
        raise MachineError(stops[0].text, fix=stops[0].fix)
    folder_of(plan)
    if plan.recipe:
        scripts.refuse_missing(plan.recipe)


def open_run(plan: Plan, draft: Draft, say: Callable[[str], None]) -> Start:
    """Take the run's lock and make its folder; a Problem where it may not be trained, or not now.

    Node 0 holds the lock for all; whether another node may take part is decided at the roll call.
    """
    folder = folder_of(plan)
    lock = hold(folder.lock) if folder.node else _take(plan, draft, folder, say)
    start = Start(plan, draft, folder, lock)
    if (ended := read_json(folder.path / "exit.json")) and ended["exit_code"] == 0:
        if plan.again and not folder.node:
            _put_aside(folder.path)
        elif not plan.again and ended.get("command") == start.wanted:
            why = f"{folder.path.name} has finished, see {folder.path}; TRAIN_AGAIN=1 trains it again"
            if lock:  # or the next start, in another container, would wait for its heartbeat
                lock.release()
            return Start(plan, draft, folder, None, finished=why)
    _make_folders(plan, folder, draft.variables)
    for name in ("exit.json", "liveness.json"):
        folder.of_node(name).unlink(missing_ok=True)
    return start


def _take(plan: Plan, draft: Draft, folder: RunFolder, say: Callable[[str], None]) -> RunLock:
    """Of two nodes that say they are node 0, the second tells the first by a file: they may not reach each other."""
    try:
        lock = take(folder.lock, say=say, endpoint=_free_endpoint(plan, draft, folder))
    except SettingError:
        if plan.cluster.nodes > 1 and (holder := living_holder(folder.lock)):
            write_json(folder.rival, {"host": socket.gethostname()})
            raise joint.two_primaries(f"pid {holder.pid} of {holder.host}") from None
        raise
    folder.rival.unlink(missing_ok=True)
    return lock


def _free_endpoint(plan: Plan, draft: Draft, folder: RunFolder) -> str:
    """Where this node 0 will hold the roll call; empty where something listens there, or there will be none."""
    if plan.roll_call is None:
        return ""
    seat = joint.seat_of(plan, draft.facts, folder, None)
    return seat.endpoint if can_listen(seat.address, seat.port) else ""


def _make_folders(plan: Plan, folder: RunFolder, variables: Mapping[str, str]) -> None:
    """The run's folders and plan.json; a stop file of an earlier start is taken away."""
    try:
        for path in (folder.path, folder.checkpoints, folder.logs):
            path.mkdir(parents=True, exist_ok=True)
        if not folder.node:
            folder.stop.unlink(missing_ok=True)
        write_text(folder.of_node("plan.json"), report.to_json(plan, variables) + "\n")
    except OSError as error:
        raise MachineError(
            f"{error.filename}: {error.strerror}", fix="TRAIN_VOLUME must name a folder that this user may write"
        ) from None


def train(start: Start, variables: Mapping[str, str], *, by_hand: bool = False) -> int:
    """Attempts until one reaches the end or none may follow; exit.json tells how it ended, also of a Problem.

    `by_hand`: a person started it, who has seen the earlier failures: their count begins anew.
    """
    agent = _agent(start, variables)
    try:
        ready = _is_set_up(start, agent, variables, by_hand=by_hand)
        decision = agent.attempts(by_hand=by_hand) if ready else _NOT_BEGUN
    except Problem as problem:
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


_NOT_BEGUN = Decision(None, STOPPED, "stopped during TRAIN_SETUP; nothing was trained")


def _is_set_up(
    start: Start, agent: "joint.JointAgent | _Agent", variables: Mapping[str, str], *, by_hand: bool
) -> bool:
    """Whether training may begin: TRAIN_SETUP has run, once for all attempts of this start."""
    command = start.plan.setup
    if command is None:
        return True
    if not (by_hand or start.folder.node):  # nothing to get ready for, if no attempt will be made
        History(start.folder, start.plan.restarts).refuse_more()
    environment = child_environment(start.plan, variables, start.folder, attempt=0)
    return set_up(command, environment, agent.launch, agent.stop)


def _agent(start: Start, variables: Mapping[str, str]) -> "joint.JointAgent | _Agent":
    plan, folder = start.plan, start.folder
    assert plan.launcher is not None  # one process of many has none, and becomes the script
    say = _Log(folder).say
    stop = StopRequest(None if folder.node else folder.stop, plan.grace_seconds, say)
    beat = start.lock.beat if start.lock else lambda: True
    launch = Launch(folder, plan.launcher, plan.grace_seconds, beat, say, HANG_SECONDS)

    def environment(plan: Plan, attempt: int) -> dict[str, str]:
        return child_environment(plan, variables, folder, attempt=attempt)

    if plan.roll_call is None:
        return _Agent(plan, launch, stop, environment)
    seat = joint.seat_of(plan, start.draft.facts, folder, _token(start.draft))
    return joint.JointAgent(start.draft, launch, stop, environment, seat)


class _Log:
    """Lines for whoever watches: the screen follows this file as it follows the processes' own."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.agent_log

    def say(self, text: str) -> None:
        try:
            with open(self._path, "a") as stream:
                stream.write(f"{text}\n")
        except OSError:  # a full volume, or one that is away: the training may still go on
            print(text, file=sys.stderr)


def become(plan: Plan, variables: Mapping[str, str]) -> None:
    """One process of many that somebody else started: be the script."""
    check_plan(plan)
    folder = folder_of(plan)
    _make_folders(plan, folder, variables)
    environment = child_environment(plan, variables, folder, attempt=0)
    python = plan.recipe is None or plan.recipe.interpreter is None
    command = [sys.executable, *plan.command[1:]] if python else list(plan.command)
    os.execvpe(command[0], command, environment)


def child_environment(plan: Plan, variables: Mapping[str, str], folder: RunFolder, *, attempt: int) -> dict[str, str]:
    """What the launcher and the training processes see: what came in, without stale ranks, plus our settings.

    One process of many keeps all of it: torch's agent, for one, told it where its store is.
    """
    stale = set(stale_variables(variables)) if plan.process_rank is None else set()
    stale |= set(_SECRETS)
    environment = {"PYTHONFAULTHANDLER": "1"}  # a crash in native code, and a hang, tell where
    environment[shells.MARK] = "training"  # a script that is run by `bash -l` keeps its rank
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
    """The attempts of a node that is alone."""

    def __init__(
        self, plan: Plan, launch: Launch, stop: StopRequest, environment: Callable[[Plan, int], dict[str, str]]
    ) -> None:
        self._plan, self.launch, self.stop, self._environment = plan, launch, stop, environment
        self._history = History(launch.folder, plan.restarts)

    @property
    def number(self) -> int:
        return self._history.number

    def attempts(self, *, by_hand: bool) -> Decision:
        if not by_hand:
            self._history.refuse_more()
        while True:
            number = self._history.begin(anew=by_hand)
            by_hand = False
            launch = replace(self.launch, trial=self._history.trial)
            outcome = run_attempt(launch, number, self._environment_of(number), self.stop).outcome
            decision = self._history.end(outcome)
            if decision.delay is None:
                return decision
            counted = self._history.counted()
            self.launch.say(f"{outcome.text}; starting again in {decision.delay:.0f} s ({counted})")
            if not self._wait(decision.delay):
                return Decision(None, STOPPED, "stopped between two attempts; start it again to go on")

    def _environment_of(self, number: int) -> dict[str, str]:
        """The plan's, and in a trial its switch, which no plan holds."""
        trial = self._history.trial
        if trial is None:
            return self._environment(self._plan, number)
        self.launch.say(trial.text)
        return self._environment(self._plan, number) | {one.name: one.value for one in trial.settings}

    def _wait(self, seconds: float) -> bool:
        """False: a request to stop came meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.launch.beat()
            if self.stop.look():
                return False
            time.sleep(0.2)
        return True


def _put_aside(run: Path) -> None:
    """The finished run becomes name.1, or the next number that is free; nothing is deleted."""
    number = 1
    while (aside := run.with_name(f"{run.name}.{number}")).exists():
        number += 1
    os.rename(run, aside)
