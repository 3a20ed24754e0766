"""The attempts of one node among several: what node 0 decides is done here, and told back."""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from entrypoint import member, report, statement
from entrypoint.attempt import End, Launch, Others, StopRequest, run_attempt
from entrypoint.diagnosis import Trial
from entrypoint.errors import STOPPED, MachineError, NodesError, Problem, SettingError, StuckError
from entrypoint.facts import Facts
from entrypoint.history import History
from entrypoint.measured import Measurements
from entrypoint.meeting import Meeting
from entrypoint.plan import Draft, Plan, Settled
from entrypoint.restarts import Decision
from entrypoint.run_folder import RunFolder, note_json, read_json, write_text
from entrypoint.seat import Seat
from entrypoint.tally import Tally
from entrypoint.values import is_loopback

_WORD_SECONDS = 5.0  # from a request to stop to leaving alone, where node 0 is not reached
_BEFORE_TRAINING = tuple(each.exit_code for each in (SettingError, MachineError, NodesError, StuckError))
_BEFORE_SECONDS = 60.0
_SEATED_SECONDS = 60.0  # more than node 0 gives the slowest node


class RunBook:
    """Node 0's: attempts and failures, on the volume."""

    def __init__(self, folder: RunFolder, allowed: int, *, by_hand: bool) -> None:
        self._folder, self._allowed, self._anew = folder, allowed, by_hand
        self._history = History(folder, allowed)

    def begin(self) -> int:
        self.look()
        if not self._anew:
            self._history.refuse_more()
        number = self._history.begin(anew=self._anew)
        self._anew = False
        with contextlib.suppress(OSError):
            self._folder.step.unlink()
        return number

    @property
    def trial(self) -> Trial | None:
        return self._history.trial

    def end(self, result: Tally) -> Decision:
        if result.failure is not None:
            note_json(self._folder.path / "failure.json", result.failure)
        decision = self._history.end(result.outcome)
        if decision.delay is None:
            return decision
        return replace(decision, text=f"starting again in {decision.delay:.0f} s ({self._history.counted()})")

    def look(self) -> Mapping[int, str]:
        """Raises where a second node 0 left its name; tells of nodes that this start will not see (TRAIN_SETUP)."""
        if (rival := read_json(self._folder.rival)) is not None:
            self._folder.rival.unlink(missing_ok=True)
            raise two_primaries(str(rival.get("host")))
        return {rank: text for rank, path in self._ends() if (text := self._last_words(path))}

    def _ends(self) -> list[tuple[int, Path]]:
        """exit-n3.json and others; a node takes its own away when it starts again."""
        paths = self._folder.path.glob("exit-n*.json")
        return [(int(path.stem[6:]), path) for path in paths if path.stem[6:].isdigit()]

    def _last_words(self, path: Path) -> str | None:
        """The first line of how a node ended before its training began, if it is of this start."""
        told: dict[str, Any] = read_json(path) or {}
        if told.get("exit_code") not in _BEFORE_TRAINING or not self._is_of_this_start(path):
            return None
        return f"it has ended: {str(told.get('text')).splitlines()[0].removeprefix('error: ')}"

    def _is_of_this_start(self, path: Path) -> bool:
        """By the volume's own clock; another node may have begun a little earlier than node 0."""
        try:
            return path.stat().st_mtime > self._folder.of_node("plan.json").stat().st_mtime - _BEFORE_SECONDS
        except OSError:
            return False


def two_primaries(other: str) -> NodesError:
    return NodesError(
        f"two nodes say that they are node 0: {socket.gethostname()} and {other}",
        fix="give every node its own TRAIN_NODE_RANK, counting from 0",
    )


def seat_of(plan: Plan, facts: Facts, folder: RunFolder, token: str | None) -> Seat:
    """Where this node meets the others. Node 0 listens on its own address of the cluster's network, and only there."""
    cluster, meeting = plan.cluster, plan.roll_call
    assert meeting is not None
    own = own_address(plan, facts) if cluster.node_rank == 0 else None
    address = own or cluster.primary_address
    assert address is not None  # only node 0 may be without the primary's address
    return Seat(
        run=folder.path,
        nodes=cluster.nodes,
        rank=cluster.node_rank,
        host=facts.hostname,
        address=address,
        port=meeting.port,
        wait_seconds=meeting.wait_seconds,
        token=token,
        peers=cluster.peers,
        bind=own,
    )


def own_address(plan: Plan, facts: Facts) -> str | None:
    """The primary's address as this machine has it: its name may be another's view, or loopback's, of it."""
    primary = plan.cluster.primary_address
    own = {address.partition("/")[0] for interface in facts.interfaces for address in interface.addresses}
    if primary is not None and (primary in own or is_loopback(primary)):
        return primary
    for target, source in facts.routes:
        if target == primary and source in own and not is_loopback(source):
            return source
    return plan.network.address


def is_primary(plan: Plan, facts: Facts) -> bool:
    """Of nodes that are told no rank, the one that has the primary's address."""
    own = {address.partition("/")[0] for interface in facts.interfaces for address in interface.addresses}
    return not own.isdisjoint(
        address for address in _addresses(plan.cluster.primary_address) if not is_loopback(address)
    )


def _addresses(host: str | None) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:  # node 0's own name is known to node 0
        return set()


@dataclass(slots=True)
class _Hearing(Others):
    """Events that come while an attempt runs."""

    meeting: Meeting
    stop: StopRequest
    told_stop: bool = False
    over: member.Over | None = None

    def must_end(self) -> End | None:
        self.pass_on_stop()
        while (event := self.meeting.next(0)) is not None:
            if isinstance(event, member.Stop):
                self.hear_stop(event)
            elif isinstance(event, member.End) and self.stop.asked_at is None:  # else it saves, and has its time
                return End(event.text, event.hang)
            elif isinstance(event, member.Over):
                self.over = event
                return End(event.text or "node 0 says that the run is over")
        return None

    def failing(self, text: str) -> None:
        self.meeting.tell("failing", text=text)

    def hang(self, text: str) -> None:
        self.meeting.tell("hang", text=text)

    def hear_stop(self, event: member.Stop) -> None:
        if self.stop.asked_at is None:
            self.told_stop = True  # node 0 knows it
            self.stop.hear(event.text, by_signal=event.by_signal)

    def pass_on_stop(self) -> None:
        if self.stop.look() and not self.told_stop:
            self.told_stop = True
            by_signal = self.stop.by_signal
            self.meeting.tell("stop", text="a signal" if by_signal else "the stop file", by_signal=by_signal)


class JointAgent:
    """This node's agent. `environment`: what a plan and an attempt's number give the processes."""

    def __init__(
        self,
        draft: Draft,
        launch: Launch,
        stop: StopRequest,
        environment: Callable[[Plan, int], Mapping[str, str]],
        seat: Seat,
    ) -> None:
        self._draft, self.launch, self.stop = draft, launch, stop
        self._environment, self._seat = environment, seat
        self._folder = launch.folder
        self.number = 0
        self._ended_at = 0.0  # the last attempt, here

    def attempts(self, *, by_hand: bool) -> Decision:
        """Until node 0 says that it is over; a Problem where the nodes do not come together."""
        plan = self._plan(Settled())
        meeting = Meeting(
            self._seat,
            lambda: statement.state(plan, self._draft.facts, host=self._seat.host),
            statement.doors(plan, self._draft.facts, self._draft.environment.interface_hint),
            self.launch.say,
            book=None if self._folder.node else RunBook(self._folder, plan.restarts, by_hand=by_hand),
            ended_elsewhere=self._ended_elsewhere,
        )
        hearing = _Hearing(meeting, self.stop)
        try:
            return self._follow(meeting, hearing)
        finally:
            meeting.close()

    def _follow(self, meeting: Meeting, hearing: _Hearing) -> Decision:
        while True:
            event = hearing.over or meeting.next(0.2)
            self.launch.beat()
            hearing.pass_on_stop()
            if isinstance(event, member.Over):
                return self._end(event)
            if isinstance(event, member.Stop):
                hearing.hear_stop(event)
            elif isinstance(event, member.Start):
                self._attempt(event, meeting, hearing)
            elif self._is_forgotten(meeting):
                return Decision(None, STOPPED, "stopped while waiting for the other nodes; start it again to go on")

    def _is_forgotten(self, meeting: Meeting) -> bool:
        """Asked to stop, and node 0 says nothing: it is not reached, or not even after all nodes had time to save."""
        if self.stop.asked_at is None:
            return False
        waited = time.monotonic() - max(self.stop.asked_at, self._ended_at)
        return waited >= (self.launch.grace_seconds + _SEATED_SECONDS if meeting.is_seated else _WORD_SECONDS)

    def _attempt(self, start: member.Start, meeting: Meeting, hearing: _Hearing) -> None:
        self.number = start.attempt
        measurements = Measurements(start.measured, start.rails)
        try:
            of_trial = start.trial.settings if start.trial else ()
            settings = of_trial if start.host_id is None else (start.host_id, *of_trial)
            plan = self._plan(Settled(master_port=start.port, measured=measurements, settings=settings))
            assert plan.launcher is not None
            self._write_plan(plan)
        except Problem as problem:
            meeting.tell("problem", exit_code=problem.exit_code, problem=problem.problem, fix=problem.fix)
            return
        self._say_network(plan, start)
        if start.trial:
            self.launch.say(start.trial.text)
        launch = replace(self.launch, launcher=plan.launcher, others=hearing, network=plan.network, trial=start.trial)
        ended = run_attempt(launch, start.attempt, dict(self._environment(plan, start.attempt)), self.stop)
        self._ended_at = time.monotonic()
        meeting.tell("ended", attempt=start.attempt, **ended.to_message())
        meeting.ready()

    def _plan(self, settled: Settled) -> Plan:
        rank = self._seat.rank if self._draft.environment.node_rank is None else None
        return self._draft.plan(replace(settled, node_rank=rank))

    def _write_plan(self, plan: Plan) -> None:
        """With what was measured. The folders too: node 0 may have put those of an earlier run aside."""
        try:
            self._folder.logs.mkdir(parents=True, exist_ok=True)
            self._folder.checkpoints.mkdir(parents=True, exist_ok=True)
            write_text(self._folder.of_node("plan.json"), report.to_json(plan, self._draft.variables) + "\n")
        except OSError as error:
            raise MachineError(
                f"{error.filename}: {error.strerror}", fix="TRAIN_VOLUME must name a folder that this user may write"
            ) from None

    def _say_network(self, plan: Plan, start: member.Start) -> None:
        for one in start.measured:
            self.launch.say(f"measured {one.interface}: {one.text}")
        self.launch.say(
            f"all {self._seat.nodes} nodes are here: attempt {start.attempt} over "
            f"{','.join(plan.network.interfaces) or 'the interface that was given'}"
        )

    def _end(self, over: member.Over) -> Decision:
        if over.failure is not None:
            note_json(self._folder.of_node("failure.json"), over.failure)
        return Decision(None, over.exit_code, over.text)

    def _ended_elsewhere(self, *, seated: bool) -> member.Over | None:
        """How node 0 ended, from the volume, where it left while this node could not hear it.

        A node that has not met it takes its word only where no training can have begun, and not an earlier start's.
        """
        path = self._folder.path / "exit.json"
        told: dict[str, Any] | None = read_json(path) if self._folder.node else None
        if told is None or not (seated or (told["exit_code"] in _BEFORE_TRAINING and self._is_newer(path))):
            return None
        return member.Over(int(told["exit_code"]), told.get("text"))

    def _is_newer(self, path: Path) -> bool:
        """Than this start, by the volume's own clock."""
        try:
            return path.stat().st_mtime > self._folder.of_node("plan.json").stat().st_mtime
        except OSError:
            return False
