"""A node's side of the roll call: finds node 0, proves itself, measures, and hears when attempts begin and end."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from entrypoint import secret
from entrypoint.diagnosis import Trial
from entrypoint.errors import NodesError, Problem
from entrypoint.measured import Measured, Rail
from entrypoint.messages import VERSION, Message, MessageError, Secret, hang_up, pack, random_word, receive, text_of
from entrypoint.reach import Door, Doors, Peer, measure
from entrypoint.reasons import Setting
from entrypoint.seat import BEAT_SECONDS, SAY_SECONDS, SILENCE_SECONDS, Seat

_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.5
_FILE_SECONDS = 8.0  # until a file that node 0 made is seen: NFS clients remember for a while what was not there
_CLAIM_SECONDS = 15.0
_TOLD_SECONDS = 1.0


class Refused(Problem):
    """Node 0 is there, and this node cannot be one of its own."""

    exit_code = NodesError.exit_code


@dataclass(frozen=True, slots=True)
class Start:
    """An attempt begins on all nodes."""

    attempt: int
    port: int
    measured: tuple[Measured, ...]
    rails: tuple[Rail, ...]
    host_id: Setting | None = None  # where NCCL would take this node for another
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The attempt has ended elsewhere. `hang`: the stacks are wanted."""

    text: str
    hang: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Save and leave. `by_signal`: hand SIGTERM to the processes; else they look at the stop file themselves."""

    text: str
    by_signal: bool = True


@dataclass(frozen=True, slots=True)
class Over:
    exit_code: int
    text: str | None
    failure: dict[str, Any] | None = None


Event = Start | End | Stop | Over


class Listener(Protocol):
    """Whom a member tells: called in its event loop, so nothing here may block."""

    def heard(self, event: Event) -> None: ...

    def say(self, text: str) -> None: ...


class Member:
    """One node of the roll call, node 0 too. `state` gives the statement anew for each attempt."""

    def __init__(
        self,
        seat: Seat,
        listener: Listener,
        state: Callable[[], dict[str, Any]],
        doors: tuple[Door, ...],
        *,
        ended_elsewhere: Callable[..., Over | None] = lambda *, seated: None,
    ) -> None:
        self._seat, self._listener, self._state = seat, listener, state
        self._doors = Doors(doors)
        self._ended_elsewhere = ended_elsewhere
        self._agent = random_word()
        self._writer: asyncio.StreamWriter | None = None
        self._ready = True
        self._stated = False
        self._stop: Message | None = None
        self._measured: tuple[Measured, ...] = ()
        self._file = ""
        self._was_seated = False
        self._measuring: asyncio.Task[None] | None = None
        self._stating: asyncio.Future[None] | None = None

    @property
    def is_seated(self) -> bool:
        return self._writer is not None

    # ---- what the agent has to say; in the loop ----

    def ready(self) -> None:
        """For another attempt."""
        self._ready, self._stated = True, False
        self._stating = asyncio.ensure_future(self._state_when_ready())

    def tell(self, message: Message) -> None:
        """Lost where there is no connection: then the attempt is over for the others anyway."""
        if message["kind"] == "stop":
            self._stop = message
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    # ---- the connection ----

    async def run(self) -> Over:
        """Until the run is over; a Problem where node 0 is not reached, or does not take this node."""
        await self._doors.open()
        try:
            while True:
                reader, writer = await self._find()
                self._writer, self._stated = writer, False
                try:
                    return await self._follow(reader)
                except TimeoutError:
                    self._listener.heard(End(f"node 0 was lost: silent for {SILENCE_SECONDS:g} s"))
                except (OSError, EOFError, MessageError) as error:
                    self._listener.heard(End(f"node 0 was lost: {_why(error)}"))
                finally:
                    if self._measuring:
                        self._measuring.cancel()
                    self._writer = None
                    await hang_up(writer)
        except _EndedElsewhere as ended:
            return ended.over
        finally:
            await self._doors.close()

    async def number(self) -> int | None:
        """The rank that node 0 gives this machine, which was told none; None: all are taken."""
        reader, writer = await self._find(hello="number")
        try:
            answer = await asyncio.wait_for(receive(reader), _CONNECT_SECONDS)
            rank = answer.get("rank")
            return rank if isinstance(rank, int) else None
        finally:
            await hang_up(writer)

    async def _find(self, hello: str = "join") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to node 0 that both sides trust; NodesError after TRAIN_WAIT without one."""
        began = time.monotonic()
        said = began - SAY_SECONDS + 1.0  # soon, where node 0 is not simply a moment late
        file_missing: float | None = None
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(self._seat.address, self._seat.port), _CONNECT_SECONDS
                )
                try:
                    missing = await asyncio.wait_for(self._greet(reader, writer, hello), _CONNECT_SECONDS)
                    if missing is None:
                        return reader, writer
                    file_missing = file_missing or time.monotonic()
                    if time.monotonic() - file_missing >= _FILE_SECONDS:
                        await self._claim(missing)
                    why = missing
                except BaseException:
                    await hang_up(writer)
                    raise
                await hang_up(writer)
            except (TimeoutError, OSError, EOFError, MessageError) as error:
                why = _why(error)
            if over := await asyncio.to_thread(self._ended_elsewhere, seated=self._was_seated):
                raise _EndedElsewhere(over)
            waited = time.monotonic() - began
            if waited >= self._seat.wait_seconds:
                raise NodesError(
                    f"node 0 at {self._seat.endpoint} was not reached in {waited:.0f} s: {why}",
                    fix="start node 0, or correct its address (TRAIN_PRIMARY); the port of the roll call must be open "
                    "between the nodes; TRAIN_WAIT is how long to wait",
                )
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                self._listener.say(f"waiting for node 0 at {self._seat.endpoint} ({waited:.0f} s so far): {why}")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: str) -> str | None:
        """None: seated. A text: what this node cannot prove yet. Refused: it never will."""
        challenge = await receive(reader)
        if challenge["kind"] != "challenge":
            raise MessageError("it answers, but not as a roll call")
        self._check(challenge)
        proven = await asyncio.to_thread(self._secret_for, text_of(challenge, "secret"))
        if proven is None:
            return await asyncio.to_thread(secret.why_unreadable, self._seat.token_path)
        mine = random_word()
        words = (text_of(challenge, "word"), mine, self._seat.run.name)
        me = {"rank": self._seat.rank, "host": self._seat.host}
        writer.write(pack({"kind": "answer", "word": mine, "proof": proven.proof("node", *words), **me}))
        answer = await receive(reader)
        if answer["kind"] != "welcome":
            if proven.kind == "file":
                return f"{self._seat.token_path} here is not the one of node 0"
            raise Refused(
                f"node 0 at {self._seat.endpoint} does not take this node's TRAIN_TOKEN",
                fix="set the same TRAIN_TOKEN on all nodes",
            )
        if not proven.proves(answer.get("proof"), "primary", *words):
            raise Refused(
                f"what answers at {self._seat.endpoint} does not know the secret of this run",
                fix="correct the primary's address (TRAIN_PRIMARY)",
            )
        self._file = text_of(answer, "file", limit=64)
        writer.write(pack({"kind": hello, "agent": self._agent, "machine": self._seat.host, **me}))
        if hello == "join":
            told = await receive(reader)
            if told["kind"] == "over":
                raise _EndedElsewhere(_over(told))
        return None

    def _check(self, challenge: Message) -> None:
        if challenge.get("version") != VERSION:
            raise Refused(
                f"node 0 at {self._seat.endpoint} speaks version {text_of(challenge, 'version')} of the roll call, "
                f"this node version {VERSION}",
                fix="start every node from the same image",
            )
        if (run := text_of(challenge, "run")) != self._seat.run.name:
            raise Refused(
                f"{self._seat.endpoint} is the roll call of run {run!r}; this node is for run {self._seat.run.name!r}",
                fix="set the same TRAIN_RUN and TRAIN_SCRIPT on all nodes, or give each run a port of its own "
                "(TRAIN_PRIMARY=host:port)",
            )

    def _secret_for(self, kind: str) -> Secret | None:
        """What node 0 asks for; None where the file cannot be read (yet)."""
        if kind == "TRAIN_TOKEN" and not self._seat.token:
            raise Refused(
                f"node 0 at {self._seat.endpoint} asks for TRAIN_TOKEN, which is not set here",
                fix="set the same TRAIN_TOKEN on all nodes",
            )
        if kind != "TRAIN_TOKEN" and self._seat.token:
            raise Refused(
                f"TRAIN_TOKEN is set here, and not on node 0 at {self._seat.endpoint}",
                fix="set the same TRAIN_TOKEN on all nodes",
            )
        if kind == "run":
            return secret.of_run(self._seat.run.name)
        return self._seat.own_secret()

    async def _claim(self, why: str) -> None:
        """Say who is here without a proof, so that all nodes learn whose volume is another; then leave."""
        with contextlib.suppress(OSError, EOFError, MessageError, asyncio.TimeoutError):
            reader, writer = await asyncio.open_connection(self._seat.address, self._seat.port)
            try:
                challenge = await asyncio.wait_for(receive(reader), _CONNECT_SECONDS)
                mine, run = random_word(), self._seat.run.name
                proof = secret.of_run(run).proof("claim", text_of(challenge, "word"), mine, run)
                me = {"rank": self._seat.rank, "host": self._seat.host, "why": why}
                writer.write(pack({"kind": "claim", "word": mine, "proof": proof, **me}))
                with contextlib.suppress(EOFError, asyncio.TimeoutError):
                    await asyncio.wait_for(receive(reader), _CLAIM_SECONDS)
            finally:
                await hang_up(writer)
        raise Refused(
            f"this node does not see the shared volume of node 0: {why}",
            fix="mount one volume on all nodes and name it with TRAIN_VOLUME",
        )

    # ---- seated ----

    async def _follow(self, reader: asyncio.StreamReader) -> Over:
        self._was_seated = True
        beat = asyncio.create_task(self._beat())
        try:
            await self._state_when_ready()
            if self._stop is not None:
                self.tell(self._stop)
            while True:
                message = await asyncio.wait_for(receive(reader), SILENCE_SECONDS)
                if message["kind"] == "over":
                    return _over(message)
                self._take(message)
        except (KeyError, TypeError, ValueError) as error:
            raise MessageError(str(error)) from None
        finally:
            beat.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.tell({"kind": "beat"})

    async def _state_when_ready(self) -> None:
        if not self._ready or self._stated or self._writer is None:
            return
        self._stated = True
        try:
            volume = await self._read_nonce()
            statement = await asyncio.to_thread(self._state)
        except Problem as problem:
            self.tell(_problem(problem))
            return
        own = {"rank": self._seat.rank, "host": self._seat.host, "volume": volume}
        doors = {"key": self._doors.key, "doors": self._doors.to_message()}
        self.tell({"kind": "statement", "statement": statement | own | doors})

    async def _read_nonce(self) -> str:
        path = self._seat.nonce_path(self._file)
        until = time.monotonic() + _FILE_SECONDS
        while True:
            try:
                return await asyncio.to_thread(path.read_text)
            except OSError as error:
                if time.monotonic() >= until:
                    return f"{path}: {error.strerror}"
            await asyncio.sleep(_RETRY_SECONDS)

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "ping":
            self.tell({"kind": "beat"})
        elif kind == "line":
            self._listener.say(text_of(message, "text", limit=4000))
            if message.get("fix"):
                self._listener.say(f"      fix: {text_of(message, 'fix')}")
        elif kind == "probe":
            self._measuring = asyncio.create_task(self._measure(message))
        elif kind == "start":
            self._ready = False
            rails = tuple(Rail(**rail) for rail in message["rails"])
            self._listener.heard(
                Start(
                    int(message["attempt"]),
                    int(message["port"]),
                    self._measured,
                    rails,
                    host_id=_host_id(message, self._seat.rank),
                    trial=Trial.of(message.get("trial")),
                )
            )
        elif kind == "end":
            self._listener.heard(End(text_of(message, "text"), bool(message.get("hang"))))
        elif kind == "stop":
            self._listener.heard(Stop(text_of(message, "text"), message.get("by_signal") is not False))

    async def _measure(self, message: Message) -> None:
        peers = [Peer.of(peer) for peer in message["peers"]]
        self._measured = await measure(self._doors.doors, peers, message.get("following"))
        self.tell({"kind": "measured", "rows": [asdict(one) for one in self._measured]})


class _EndedElsewhere(Exception):
    def __init__(self, over: Over) -> None:
        super().__init__(over.text)
        self.over = over


def _host_id(message: Message, rank: int | None) -> Setting | None:
    told = message.get("host_ids", {}).get(str(rank))
    return Setting("NCCL_HOSTID", str(told["value"]), str(told["reason"])) if told else None


def _over(message: Message) -> Over:
    failure = message.get("failure")
    text = message.get("text")
    return Over(int(message["exit_code"]), None if text is None else str(text), failure if failure else None)


def _problem(problem: Problem) -> Message:
    return {"kind": "problem", "exit_code": problem.exit_code, "problem": problem.problem, "fix": problem.fix}


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer in {_CONNECT_SECONDS:g} s"
    if isinstance(error, socket.gaierror):
        return f"its name has no address ({error.strerror})"
    if isinstance(error, OSError):
        return (os.strerror(error.errno) if error.errno else str(error)).lower()
    return "the connection was closed" if isinstance(error, EOFError) else str(error)
