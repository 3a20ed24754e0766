"""The door of the roll call: who connects proves itself here, or is turned away without disturbing anybody."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from entrypoint import secret
from entrypoint.errors import MachineError
from entrypoint.measured import Measured
from entrypoint.messages import (
    VERSION,
    Connections,
    Message,
    MessageError,
    hang_up,
    pack,
    random_word,
    rank_of,
    receive,
    text_of,
)
from entrypoint.roster import name, rank_for
from entrypoint.run_folder import note_json, read_json
from entrypoint.seat import SILENCE_SECONDS, Seat

HANDSHAKE_SECONDS = 5.0
_STRANGERS = 2048  # connections that have proven nothing yet


@dataclass(eq=False, slots=True)
class Guest:
    """A node that has proven itself. `word`: of its agent's process, the same on each connection of it."""

    rank: int
    host: str
    address: str
    word: str
    writer: asyncio.StreamWriter
    statement: dict[str, Any] | None = None  # for the next attempt
    offset: float = 0.0  # seconds that its clock is ahead of node 0's
    measured: tuple[Measured, ...] | None = None
    heard_at: float = field(default_factory=time.monotonic)
    contested: bool = False
    waiting: list[Message] = field(default_factory=list)  # what it said before it got its seat

    @property
    def name(self) -> str:
        return name(self.rank, self.host)

    def post(self, message: Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(pack(message))

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True, slots=True)
class Claim:
    """A node that came, cannot prove that it belongs here, and says why."""

    host: str
    address: str
    why: str
    since: float
    writer: asyncio.StreamWriter


class Reception:
    """Listens on the cluster's interface; what proven nodes say goes into `inbox`, with "joined" and "lost"."""

    def __init__(self, seat: Seat, inbox: "asyncio.Queue[tuple[Guest, Message]]", say: Callable[[str], None]) -> None:
        self._seat, self._inbox, self._say = seat, inbox, say
        self.secret = secret.of_run(seat.run.name)
        self.claims: dict[int, Claim] = {}
        self.notes: dict[int, str] = {}  # of ranks that came and were not let in
        self.over: Message | None = None  # set: who comes is told this
        self._nonce_name, self._nonce = random_word(), random_word()
        self._strangers = 0
        self._here: dict[str, int] = {}  # machine → connections
        self._owners: dict[int, str] = {}  # ranks given by arrival
        self._server: asyncio.Server | None = None
        self._connections = Connections()

    async def open(self) -> None:
        """MachineError where the port cannot be had."""
        seat = self._seat
        self.secret = await asyncio.to_thread(seat.host_secret)
        await asyncio.to_thread(self._prepare)
        try:
            came = self._connections.served_by(self._came)
            self._server = await asyncio.start_server(came, seat.bind or seat.address, seat.port, backlog=1024)
        except OSError as error:
            raise MachineError(
                f"the roll call cannot listen on {seat.bind or seat.address}, port {seat.port}: "
                f"{error.strerror or error}",
                fix="end the program that has this port, or choose another with TRAIN_PRIMARY=host:port (the roll call "
                "takes the port after it)",
            ) from None

    def _prepare(self) -> None:
        try:
            self._seat.run.parent.mkdir(parents=True, exist_ok=True)
            for old in self._seat.run.parent.glob(f".{self._seat.run.name}.*.meeting"):
                old.unlink(missing_ok=True)
            self._seat.nonce_path(self._nonce_name).write_text(self._nonce)
        except OSError as error:
            raise MachineError(
                f"{error.filename}: {error.strerror}", fix="TRAIN_VOLUME must name a folder that this user may write"
            ) from None
        told = read_json(self._owners_path) or {}
        self._owners = {int(rank): str(owner) for rank, owner in told.items()}

    @property
    def nonce(self) -> str:
        return self._nonce

    @property
    def _owners_path(self) -> Any:
        return self._seat.run.with_name(f".{self._seat.run.name}.ranks")

    async def close(self) -> None:
        if self._server:
            self._server.close()
        await self._connections.end()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._seat.nonce_path(self._nonce_name).unlink, True)

    def tell_claimants(self, message: Message) -> None:
        for claim in self.claims.values():
            with contextlib.suppress(OSError):
                claim.writer.write(pack(message))

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = None
        try:
            guest = await self._receive_stranger(reader, writer)
            if guest:
                await self._listen(guest, reader)
        except (OSError, EOFError, MessageError, TypeError, ValueError) as error:
            if guest:
                self._put_lost(guest, _why(error))
        finally:
            await hang_up(writer)

    async def _receive_stranger(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Guest | None:
        """A guest, or None for who is not one; the time for it is short, and so is what may be sent."""
        if self._strangers >= _STRANGERS:
            return None
        self._strangers += 1
        try:
            return await asyncio.wait_for(self._greet(reader, writer), HANDSHAKE_SECONDS)
        finally:
            self._strangers -= 1

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Guest | None:
        word = random_word()
        run = self._seat.run.name
        writer.write(
            pack({"kind": "challenge", "version": VERSION, "run": run, "secret": self.secret.kind, "word": word})
        )
        answer = await receive(reader)
        address = _address(writer)
        theirs = text_of(answer, "word")
        if answer["kind"] == "claim":
            await self._hear_claim(answer, address, reader, writer, words=("claim", word, theirs, run))
            return None
        if answer["kind"] != "answer" or not self.secret.proves(answer.get("proof"), "node", word, theirs, run):
            writer.write(pack({"kind": "refused", "text": "the proof is wrong"}))
            self._turned_away(answer, address, "came with another secret")
            return None
        proof = self.secret.proof("primary", word, theirs, run)
        writer.write(pack({"kind": "welcome", "proof": proof, "file": self._nonce_name}))
        hello = await receive(reader)
        if hello["kind"] == "number":
            rank = await asyncio.to_thread(self._number, text_of(hello, "machine"))
            writer.write(pack({"kind": "number", "rank": rank}))
            return None
        if hello["kind"] != "join":
            raise MessageError(f"{hello['kind']!r} where a node should join")
        if self.over:
            writer.write(pack(self.over))
        rank = rank_of(hello, self._seat.nodes)
        self.claims.pop(rank, None)
        self.notes.pop(rank, None)
        guest = Guest(rank, text_of(hello, "host", limit=64), address, text_of(hello, "agent"), writer)
        self._here[text_of(hello, "machine")] = self._here.get(text_of(hello, "machine"), 0) + 1
        guest.post({"kind": "seated"})
        self._inbox.put_nowait((guest, {"kind": "joined"}))
        return guest

    async def _hear_claim(
        self,
        claim: Message,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        words: tuple[str, ...],
    ) -> None:
        """It knows the run's name, so it did not come by accident. The connection stays, for the verdict."""
        weak = secret.of_run(self._seat.run.name)
        if not weak.proves(claim.get("proof"), *words):
            return
        rank = rank_of(claim, self._seat.nodes)
        why = text_of(claim, "why")
        self.notes[rank] = f"{text_of(claim, 'host', limit=64)} at {address}: {why}"
        if rank not in self.claims:
            self._say(f"{name(rank, text_of(claim, 'host', limit=64))} at {address} is not let in: {why}")
        old = self.claims.get(rank)
        since = old.since if old else time.monotonic()
        self.claims[rank] = Claim(text_of(claim, "host", limit=64), address, why, since, writer)
        with contextlib.suppress(EOFError, OSError, MessageError):
            await receive(reader)

    def _turned_away(self, answer: Message, address: str, why: str) -> None:
        with contextlib.suppress(MessageError):
            rank = rank_of(answer, self._seat.nodes)
            host = text_of(answer, "host", limit=64)
            if rank not in self.notes:
                self._say(f"{name(rank, host)} at {address} is not let in: it {why}")
            self.notes[rank] = f"{host} at {address} {why}"

    def _number(self, machine: str) -> int | None:
        """A rank for a node that was told none; remembered on the volume, for when node 0 comes back."""
        rank = rank_for(machine, self._owners, self._seat.nodes, gone=lambda owner: not self._here.get(owner))
        if rank is not None:
            self._owners[rank] = machine
            note_json(self._owners_path, self._owners)
        return rank

    async def _listen(self, guest: Guest, reader: asyncio.StreamReader) -> None:
        while True:
            message = await asyncio.wait_for(receive(reader), SILENCE_SECONDS)
            guest.heard_at = time.monotonic()
            if message["kind"] == "beat":
                guest.post({"kind": "beat"})
                if not guest.contested:
                    continue
            if message["kind"] == "statement" and isinstance(message.get("statement"), dict):
                message["statement"]["volume"] = _volume(message["statement"].get("volume"), self._nonce)
                guest.offset = float(message["statement"].get("clock") or time.time()) - time.time()
            self._inbox.put_nowait((guest, message))

    def _put_lost(self, guest: Guest, why: str) -> None:
        self._inbox.put_nowait((guest, {"kind": "lost", "text": why}))


def can_listen(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _volume(told: object, nonce: str) -> str:
    return "that of node 0" if told == nonce else f"another one ({told})"


def _address(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else "?"


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"silent for {SILENCE_SECONDS:g} s"
    if isinstance(error, MessageError):
        return f"it sent something odd ({error})"
    return "its connection closed"
