"""Node 0's side of the roll call: who is here, what all agree on, and when an attempt begins and ends, for all nodes.

One coroutine (`run`) decides; the connections only put what they hear into its inbox. Nothing here blocks: what
touches the volume runs in a thread, so a slow volume does not silence the heartbeat.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from entrypoint.diagnosis import Trial
from entrypoint.errors import STOPPED, NodesError, Problem
from entrypoint.host_ids import host_ids
from entrypoint.measured import Measured, common_rails
from entrypoint.messages import Message, MessageError, text_of
from entrypoint.reception import Guest, Reception
from entrypoint.restarts import Decision, Outcome
from entrypoint.roster import Absent, compare, host_of, name, peers_of, unreachable, waiting_line
from entrypoint.seat import SAY_SECONDS, Seat
from entrypoint.tally import Report, Tally, tally

_TICK_SECONDS = 0.25
_SETTLE_SECONDS = 5.0  # a difference is told when this long nobody has come who might tell which side is right
_CLAIM_SECONDS = 3.0
_MEASURE_SECONDS = 60.0
_END_SECONDS = 40.0  # from the word that an attempt ends to the last node's report; a hang's dump takes 10
_LEAVE_SECONDS = 5.0


class Book(Protocol):
    """What node 0 keeps on the volume. Called in a thread; any of them may raise a Problem."""

    def look(self) -> Mapping[int, str]:
        """What the volume tells of nodes that have ended already; called every second of a roll call.

        Raises where this node must not go on.
        """

    def begin(self) -> int: ...

    @property
    def trial(self) -> Trial | None:
        """Set where the attempt that has begun is one."""

    def end(self, result: Tally) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the run ended, for every node."""

    exit_code: int
    text: str | None = None
    failure: dict[str, Any] | None = None

    @classmethod
    def of(cls, problem: Problem, prefix: str = "") -> "Verdict":
        return cls(problem.exit_code, f"error: {prefix}{problem}")

    def to_message(self) -> Message:
        return {"kind": "over", **asdict(self)}


class _Over(Exception):
    """The run is over."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


@dataclass(slots=True)
class _Attempt:
    number: int
    reports: dict[int, Report] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    ending_since: float | None = None


class Coordinator:
    """`say` is for what concerns node 0's log only: lines for everybody go over the wire, to its own node too."""

    def __init__(self, seat: Seat, book: Book, say: Callable[[str], None]) -> None:
        self._seat, self._book, self._say = seat, book, say
        self._inbox: asyncio.Queue[tuple[Guest, Message]] = asyncio.Queue()
        self._reception = Reception(seat, self._inbox, say)
        self._guests: dict[int, Guest] = {}
        self._seen: dict[int, tuple[str, float]] = {}
        self._contests: list[tuple[Guest, Guest]] = []
        self._attempt: _Attempt | None = None
        self._stopping = False
        self._not_before = 0.0
        self._changed_at = time.monotonic()
        self._settled_at = 0.0
        self._measured_with: frozenset[str] = frozenset()
        self._warned: set[str] = set()
        self._told: Mapping[int, str] = {}  # on the volume, by nodes that are not here

    async def open(self) -> None:
        """MachineError where the port is taken."""
        await self._reception.open()

    async def run(self) -> Verdict:
        """Attempts until one reaches the end or none may follow; every node that is here is told the same verdict."""
        try:
            while True:
                await self._gather()
                rails = await self._measure()
                result = await self._run_attempt(rails)
                await self._follow(result)
        except _Over as over:
            verdict = over.verdict
        except Problem as problem:
            verdict = Verdict.of(problem)
        await self._say_over(verdict)
        return verdict

    async def close(self) -> None:
        await self._reception.close()

    # ---- the roll call ----

    async def _gather(self) -> None:
        """Return when all nodes are here and agree; NodesError where they do not, or some have not come in time."""
        began = looked = time.monotonic()
        said = began - SAY_SECONDS / 2  # the first line comes sooner: who is missing is named 10 s after the command
        self._changed_at = began
        while True:
            await self._heed(_TICK_SECONDS)
            now = time.monotonic()
            ready = self._ready()
            complete = len(ready) == self._seat.nodes
            if complete or self._has_settled(now):
                self._refuse_disagreement(ready, complete=complete)
            self._refuse_claims(now)
            if now - looked >= 1.0:
                looked = now
                self._told = await asyncio.to_thread(self._book.look)
            if complete and now >= self._not_before:
                return
            late = now - began >= self._seat.wait_seconds
            if complete or (not late and now - said < SAY_SECONDS):
                continue
            said = now
            line = waiting_line(self._seat.nodes, ready, now - began, self._absent(now))
            if late:
                raise NodesError(line, fix="start them, or see their logs; TRAIN_WAIT is how long to wait for them")
            self._tell({"kind": "line", "text": line})

    def _has_settled(self, now: float) -> bool:
        """Once after the last change, when a while has passed: comparing at each one would be quadratic."""
        if self._settled_at == self._changed_at or now - self._changed_at < _SETTLE_SECONDS:
            return False
        self._settled_at = self._changed_at
        return True

    def _ready(self) -> dict[int, Guest]:
        return {rank: guest for rank, guest in self._guests.items() if guest.statement is not None}

    def _absent(self, now: float) -> dict[int, Absent]:
        notes = (
            dict(self._told)
            | self._reception.notes
            | {
                rank: "it is here, and still ends its last attempt" if guest.measured else "it is here, and gets ready"
                for rank, guest in self._guests.items()
            }
        )
        return {
            rank: Absent(
                address=self._seat.peers[rank] if rank < len(self._seat.peers) else None,
                host=self._seen[rank][0] if rank in self._seen else None,
                seconds_ago=now - self._seen[rank][1] if rank in self._seen else None,
                note=notes.get(rank),
            )
            for rank in range(self._seat.nodes)
        }

    def _refuse_disagreement(self, ready: Mapping[int, Guest], *, complete: bool) -> None:
        statements = {rank: guest.statement or {} for rank, guest in ready.items()}
        if len(statements) < 2:
            return
        for finding in compare(statements, {rank: guest.offset for rank, guest in ready.items()}):
            if finding.level == "stop":
                raise NodesError(f"the nodes differ: {finding.text}", fix=finding.fix)
            if complete and finding.text not in self._warned:
                self._warned.add(finding.text)
                self._tell({"kind": "line", "text": f"warn  {finding.text}", "fix": finding.fix})

    def _refuse_claims(self, now: float) -> None:
        """A node that came and cannot prove that it has the volume, where the volume is what is to be proven."""
        for rank, claim in self._reception.claims.items():
            if (
                self._reception.secret.kind == "file"
                and now - claim.since >= _CLAIM_SECONDS
                and rank not in self._guests
            ):
                raise NodesError(
                    f"{name(rank, claim.host)} at {claim.address} does not see node 0's shared volume: {claim.why}",
                    fix="mount one volume on all nodes and name it with TRAIN_VOLUME",
                )

    # ---- what is measured ----

    async def _measure(self) -> list[Message]:
        """The rails that all nodes have in common; NodesError where a node cannot reach another."""
        ready = self._ready()
        if self._measured_with == frozenset(guest.word for guest in ready.values()):
            return self._rails()
        for guest in ready.values():
            guest.measured = None
        for rank, guest in ready.items():
            peers = [_peer(other, ready[other]) for other in peers_of(rank, self._seat.nodes)]
            guest.post({"kind": "probe", "peers": peers, "following": (rank + 1) % self._seat.nodes})
        deadline = time.monotonic() + _MEASURE_SECONDS
        while missing := [rank for rank, guest in ready.items() if guest.measured is None]:
            if self._ready().keys() != ready.keys() or any(self._guests[rank] is not ready[rank] for rank in ready):
                await self._gather()  # one went away meanwhile
                return await self._measure()
            if time.monotonic() > deadline:
                raise NodesError(
                    f"{name(missing[0], ready[missing[0]].host)} did not measure its network in {_MEASURE_SECONDS:g} s",
                    fix="see its log",
                )
            await self._heed(_TICK_SECONDS)
        self._refuse_unreachable(ready)
        self._measured_with = frozenset(guest.word for guest in ready.values())
        return self._rails()

    def _rails(self) -> list[Message]:
        return [asdict(rail) for rail in common_rails({r: g.measured or () for r, g in self._ready().items()})]

    def _refuse_unreachable(self, ready: Mapping[int, Guest]) -> None:
        measured = {rank: guest.measured or () for rank, guest in ready.items()}
        if found := unreachable(measured, {rank: guest.host for rank, guest in ready.items()}):
            raise NodesError(found.text, fix=found.fix)

    # ---- an attempt ----

    async def _run_attempt(self, rails: list[Message]) -> Tally:
        number = await asyncio.to_thread(self._book.begin)
        ready = self._ready()
        if len(ready) < self._seat.nodes:  # one went in this moment: it is lost with the attempt that was noted
            return Tally(Outcome(137, "a node went before the attempt began", by_itself=False), None)
        attempt = self._attempt = _Attempt(number)
        hosts = {rank: host for rank, guest in ready.items() if (host := host_of(guest.statement or {}))}
        told = {
            "host_ids": {str(rank): asdict(setting) for rank, setting in host_ids(hosts).items()},
            "trial": asdict(trial) if (trial := self._book.trial) else None,
        }
        port = free_port(int(ready[0].statement["master_port"]), avoid=self._seat.port)  # type: ignore[index]
        for guest in ready.values():
            guest.statement = None  # the next attempt wants a new one
        self._tell({"kind": "start", "attempt": number, "port": port, "rails": rails, **told}, ready.values())
        while len(attempt.reports.keys() | attempt.lost.keys()) < self._seat.nodes:
            await self._heed(_TICK_SECONDS)
            if attempt.ending_since is not None and time.monotonic() - attempt.ending_since > _END_SECONDS:
                for rank in set(range(self._seat.nodes)) - attempt.reports.keys() - attempt.lost.keys():
                    attempt.lost[rank] = f"{name(rank, ready[rank].host)} did not end its processes"
        self._attempt = None
        offsets = {rank: guest.offset for rank, guest in ready.items()}
        return tally(number, attempt.reports, attempt.lost, offsets, stopping=self._stopping)

    async def _follow(self, result: Tally) -> None:
        decision = await asyncio.to_thread(self._book.end, result)
        if decision.delay is None:
            raise _Over(Verdict(decision.exit_code, decision.text, result.failure))
        if self._stopping:
            raise _Over(Verdict(STOPPED, "stopped between two attempts; start it again to go on"))
        self._not_before = time.monotonic() + decision.delay
        self._tell({"kind": "line", "text": f"{result.outcome.text}; {decision.text}"})

    def _end_attempt(self, text: str, *, hang: bool = False) -> None:
        if self._stopping:  # all save and leave, each within TRAIN_GRACE: who goes first takes nobody's last checkpoint
            return
        if self._attempt and self._attempt.ending_since is None:
            self._attempt.ending_since = time.monotonic()
            self._tell({"kind": "end", "text": text, "hang": hang})

    # ---- what the nodes say ----

    async def _heed(self, seconds: float) -> None:
        """Take what is in the inbox, or wait so long for something."""
        try:
            guest, message = await asyncio.wait_for(self._inbox.get(), seconds)
        except TimeoutError:
            return
        while True:
            try:
                self._take(guest, message)
            except (MessageError, KeyError, TypeError, ValueError) as error:
                self._say(f"{guest.name} at {guest.address} sent something odd: {error}")
                guest.close()
            if self._inbox.empty():
                return
            guest, message = self._inbox.get_nowait()

    def _take(self, guest: Guest, message: Message) -> None:
        kind = message["kind"]
        if kind == "joined":
            self._seat_guest(guest)
        elif kind == "lost":
            self._lose(guest, text_of(message, "text"))
        elif kind == "beat":
            self._settle_contests(guest)
        elif self._guests.get(guest.rank) is not guest:
            guest.waiting.append(message)  # another node has its rank, which is being looked into
        elif kind == "statement":
            guest.statement = message["statement"] if isinstance(message["statement"], dict) else {}
            self._changed_at = time.monotonic()
        elif kind == "measured":
            guest.measured = tuple(_measured(row) for row in message["rows"])
        elif kind == "failing":
            self._end_attempt(f"{guest.name}: {text_of(message, 'text')}")
        elif kind == "hang":
            self._end_attempt(text_of(message, "text"), hang=True)
        elif kind == "ended":
            self._note_report(guest, message)
        elif kind == "stop":
            self._stop(guest, text_of(message, "text"), by_signal=message.get("by_signal") is not False)
        elif kind == "problem":
            text = f"error: {guest.name}: {text_of(message, 'problem', limit=2000)}\n  fix: {text_of(message, 'fix')}"
            raise _Over(Verdict(int(message["exit_code"]), text))

    def _note_report(self, guest: Guest, message: Message) -> None:
        attempt = self._attempt
        if attempt is None or message.get("attempt") != attempt.number or guest.rank in attempt.reports:
            return
        report = attempt.reports[guest.rank] = Report.of(message)
        if report.outcome.exit_code not in (0, STOPPED):
            self._end_attempt(f"{guest.name}: {report.outcome.text}")

    def _stop(self, guest: Guest, text: str, *, by_signal: bool) -> None:
        """Training is collective: who is asked to stop alone would leave the others hanging, so all save and leave."""
        if self._stopping:
            return
        self._stopping = True
        if self._attempt is None:
            raise _Over(Verdict(STOPPED, f"stopped before the training began ({guest.name}: {text})"))
        self._tell({"kind": "stop", "text": f"{guest.name}: {text}", "by_signal": by_signal})

    # ---- who comes and goes ----

    def _seat_guest(self, guest: Guest) -> None:
        old = self._guests.get(guest.rank)
        if old is not None and old.word == guest.word:
            self._lose(old, "it came back on a new connection")
            old.close()
            old = None
        if old is not None:  # who holds the rank is asked for a sign of life before anybody is accused
            self._contests.append((old, guest))
            old.contested = True
            old.post({"kind": "ping"})
            return
        self._guests[guest.rank] = guest
        self._seen.pop(guest.rank, None)
        self._changed_at = time.monotonic()
        for message in guest.waiting:
            self._take(guest, message)
        guest.waiting.clear()

    def _settle_contests(self, old: Guest) -> None:
        for holder, newcomer in [pair for pair in self._contests if pair[0] is old]:
            self._contests.remove((holder, newcomer))
            text = (
                f"two nodes say that they are node {old.rank}: {holder.host} ({holder.address}) and "
                f"{newcomer.host} ({newcomer.address})"
            )
            problem = NodesError(text, fix="give every node its own TRAIN_NODE_RANK, counting from 0")
            if self._attempt is None:
                newcomer.post(Verdict.of(problem).to_message())
                raise problem
            newcomer.post(Verdict.of(problem).to_message())  # a training that runs is not ended for it
            newcomer.close()
            self._say(f"refused: {text}")

    def _lose(self, guest: Guest, text: str) -> None:
        self._contests = [pair for pair in self._contests if pair[1] is not guest]
        if self._guests.get(guest.rank) is not guest:
            return
        del self._guests[guest.rank]
        self._changed_at = time.monotonic()
        self._seen[guest.rank] = (guest.host, guest.heard_at)
        attempt = self._attempt
        if attempt is not None and guest.rank not in attempt.reports and guest.rank not in attempt.lost:
            attempt.lost[guest.rank] = f"{guest.name} was lost: {text}"
            self._end_attempt(attempt.lost[guest.rank])
        for holder, newcomer in [pair for pair in self._contests if pair[0] is guest]:
            self._contests.remove((holder, newcomer))
            self._seat_guest(newcomer)

    def _tell(self, message: Message, guests: Iterable[Guest] | None = None) -> None:
        for guest in list(self._guests.values() if guests is None else guests):
            guest.post(message)

    async def _say_over(self, verdict: Verdict) -> None:
        """Tell everybody, also who comes only now, and wait a little until they have gone."""
        self._reception.over = verdict.to_message()
        self._tell(verdict.to_message())
        self._reception.tell_claimants(verdict.to_message())
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._guests and time.monotonic() < deadline:
            with contextlib.suppress(asyncio.TimeoutError):
                guest, message = await asyncio.wait_for(self._inbox.get(), _TICK_SECONDS)
                if message["kind"] == "lost":
                    self._lose(guest, "")


def _peer(rank: int, guest: Guest) -> Message:
    statement = guest.statement or {}
    return {"rank": rank, "key": statement.get("key"), "doors": statement.get("doors") or []}


def _measured(row: Any) -> Measured:
    return Measured(**{**row, "reached": tuple(row["reached"]), "missed": tuple(row["missed"])})


def free_port(wanted: int, *, avoid: int) -> int:
    """torch's port for an attempt: the plan's, or any other where something holds it still.

    Node 0 chooses for all; a node that is alone leaves it to its child (elastic.py), which imports nothing of ours.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", wanted))
            return wanted
        except OSError:
            pass
    while True:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
            if port != avoid:
                return port
