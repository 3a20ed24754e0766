"""What the interfaces of the nodes reach: a connection, a payload larger than the MTU, a short sample of speed.

Each interface has a door: a port on its address, whose key only those know who are in the roll call. A visitor comes
bound to one of its own interfaces.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from entrypoint.measured import Measured
from entrypoint.messages import Connections, Message, MessageError, hang_up, pack, random_word, receive

T = TypeVar("T")

CONNECT_SECONDS = 2.0
LARGE_SECONDS = 3.0
SAMPLE_SECONDS = 0.2
LARGE_BYTES = 64 << 10
_CHUNK = bytes(64 << 10)
_VISIT_SECONDS = 15.0
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Door:
    """An interface's address, and the port behind which its node answers."""

    interface: str
    address: str
    network: str  # "10.65.1.0/24"
    port: int = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node's doors, and the word that opens them."""

    rank: int
    key: str
    doors: tuple[Door, ...]

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "Peer":
        try:
            doors = tuple(Door(str(i), str(a), str(n), int(p)) for i, a, n, p in message["doors"])
            return cls(int(message["rank"]), str(message["key"]), doors)
        except (KeyError, TypeError, ValueError) as error:
            raise MessageError(f"a peer: {error}") from None


class Doors:
    """This node's doors, open from `open` to `close`."""

    def __init__(self, wanted: Sequence[Door]) -> None:
        self.key = random_word()
        self.doors: tuple[Door, ...] = ()
        self._wanted = tuple(wanted)
        self._servers: list[asyncio.Server] = []
        self._visits = Connections()

    async def open(self) -> None:
        opened, visited = [], self._visits.served_by(self._visited)
        for door in self._wanted:
            with contextlib.suppress(OSError):  # an address that has gone since it was seen
                server = await asyncio.start_server(visited, door.address, 0, limit=len(_CHUNK) * 4, backlog=512)
                self._servers.append(server)
                port = server.sockets[0].getsockname()[1]
                opened.append(Door(door.interface, door.address, door.network, port))
        self.doors = tuple(opened)

    def to_message(self) -> list[list[object]]:
        return [[door.interface, door.address, door.network, door.port] for door in self.doors]

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []
        await self._visits.end()

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.wait_for(self._serve(reader, writer), _VISIT_SECONDS)
        except (OSError, EOFError, MessageError):
            pass
        finally:
            await hang_up(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            message = await receive(reader)
            if message.get("key") != self.key:
                return
            if message["kind"] == "flow":
                writer.write(pack({"kind": "flowed", "mbit": await _count(reader)}))
                while await reader.read(len(_CHUNK)):  # closed with data unread, the connection would be reset, and the
                    pass  # visitor, who is still sending, would not get the answer
                return
            payload = await reader.readexactly(LARGE_BYTES) if message["kind"] == "large" else b""
            writer.write(pack({"kind": "here"}) + payload)
            await writer.drain()


async def _count(reader: asyncio.StreamReader) -> int:
    """Mbit/s that arrive, from the first byte on. The sender's side would count what is still in its buffers."""
    total, began = 0, 0.0
    while data := await reader.read(len(_CHUNK)):
        now = time.monotonic()
        if not began:
            began = now
            continue
        total += len(data)
        if now - began >= SAMPLE_SECONDS:
            break
    seconds = time.monotonic() - began
    return round(total * 8 / 1e6 / seconds) if total and seconds > 0 else 0


@dataclass(slots=True)
class _Try:
    """What one visit found; `why` tells of the first thing that failed."""

    door: Door | None = None  # the peer's, that answered
    large: bool = False
    why: str = ""


async def measure(own: Sequence[Door], peers: Sequence[Peer], following: int | None) -> tuple[Measured, ...]:
    """Every own interface toward every peer; the sample of speed toward node `following` only."""
    slots = asyncio.Semaphore(_AT_ONCE)
    here = frozenset(door.address for door in own)

    async def visit(door: Door, peer: Peer) -> _Try:
        async with slots:
            return await _visit(door, peer, here)

    async def row(door: Door) -> dict[int, _Try]:
        return dict(zip(ranks, await asyncio.gather(*(visit(door, peer) for peer in peers)), strict=True))

    ranks = [peer.rank for peer in peers]
    rows = await asyncio.gather(*(row(door) for door in own))
    speeds: list[int | None] = []
    for door, found in zip(own, rows, strict=True):  # one after the other: they may share a link
        speeds.append(await _speed(door, found, peers, following, here))
    return tuple(_measured(*each) for each in zip(own, rows, speeds, strict=True))


def _measured(door: Door, found: Mapping[int, _Try], speed: int | None) -> Measured:
    reached = tuple(rank for rank, one in found.items() if one.door)
    missed = tuple(rank for rank, one in found.items() if not one.door)
    return Measured(
        interface=door.interface,
        network=door.network,
        reached=reached,
        missed=missed,
        large_passes=all(found[rank].large for rank in reached) if reached else None,
        mbit_per_second=speed,
        detail=next((one.why for one in found.values() if one.why), ""),
    )


def doors_toward(own: Door, peer: Peer) -> tuple[Door, ...]:
    """Those of the peer in the same network; where there is none, those that a route may lead to."""
    same = tuple(door for door in peer.doors if door.network == own.network)
    version = ipaddress.ip_address(own.address).version
    return same or tuple(door for door in peer.doors if ipaddress.ip_address(door.address).version == version)[:8]


async def _visit(own: Door, peer: Peer, here: frozenset[str]) -> _Try:
    result = _Try(why="it has no address of this kind")
    for door in doors_toward(own, peer):
        result = await _knock(own, peer, door, here)
        if result.door:
            return result
    return result


async def _knock(own: Door, peer: Peer, door: Door, here: frozenset[str]) -> _Try:
    found = _Try()
    writer = None
    way = f"{own.address} to {door.address}"
    try:
        reader, writer = await _within(CONNECT_SECONDS, _connect(own, door, here))
        writer.write(pack({"kind": "small", "key": peer.key}))
        await _within(CONNECT_SECONDS, receive(reader))
        found.door = door
        writer.write(pack({"kind": "large", "key": peer.key}) + _CHUNK[:LARGE_BYTES])
        await _within(LARGE_SECONDS, _read_large(reader))
        found.large = True
    except TimeoutError:
        seconds = LARGE_SECONDS if found.door else CONNECT_SECONDS
        found.why = f"{way}: {'64 KB do' if found.door else 'does'} not get through in {seconds:g} s"
    except (OSError, EOFError, MessageError) as error:
        found.why = f"{way}: {_reason(error)}"
    finally:
        if writer:
            await hang_up(writer)
    return found


async def _read_large(reader: asyncio.StreamReader) -> None:
    await receive(reader)
    await reader.readexactly(LARGE_BYTES)


async def _speed(
    own: Door, found: Mapping[int, _Try], peers: Iterable[Peer], following: int | None, here: frozenset[str]
) -> int | None:
    peer = next((peer for peer in peers if peer.rank == following), None)
    if peer is None or (door := found[peer.rank].door) is None or not found[peer.rank].large:
        return None
    writer = None
    try:
        reader, writer = await _within(CONNECT_SECONDS, _connect(own, door, here))
        return await _within(CONNECT_SECONDS, _flow(reader, writer, peer.key))
    except (TimeoutError, OSError, EOFError, MessageError):
        return None
    finally:
        if writer:
            writer.transport.abort()  # what is still to be sent is of no use


async def _flow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> int | None:
    writer.write(pack({"kind": "flow", "key": key}))
    answer: asyncio.Task[Message] = asyncio.create_task(receive(reader))
    try:
        while not answer.done():
            writer.write(_CHUNK)
            drained = asyncio.ensure_future(writer.drain())
            await asyncio.wait({answer, drained}, return_when=asyncio.FIRST_COMPLETED)
            if not drained.done():
                drained.cancel()
            elif drained.exception():
                break
        mbit = (await answer).get("mbit")
        return mbit if isinstance(mbit, int) and mbit > 0 else None
    finally:
        answer.cancel()


async def _connect(own: Door, door: Door, here: frozenset[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that leaves by the interface. The address alone would not decide that; the device does."""
    family = socket.AF_INET6 if ":" in door.address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        if door.address not in here:  # the way to an address of this machine is loopback, whatever its interface
            with contextlib.suppress(OSError):  # old kernels let only root do this
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, own.interface.encode())
        connection.bind((own.address, 0))
        await asyncio.get_running_loop().sock_connect(connection, (door.address, door.port))
        return await asyncio.open_connection(sock=connection, limit=len(_CHUNK) * 4)
    except BaseException:
        connection.close()
        raise


async def _within(seconds: float, wanted: Awaitable[T]) -> T:
    return await asyncio.wait_for(wanted, seconds)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return "the connection was closed" if isinstance(error, EOFError) else str(error).lower()
