"""The roll call's messages: four bytes of length, then a JSON object with a `kind`. At most 64 KB, never pickle.

Who connects is first asked to prove that it knows the secret, and proves the same in return (HMAC-SHA256 over both
sides' random words), so a node does not follow a foreign primary either.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
MAX_BYTES = 64 << 10
_HEAD = 4

Message = dict[str, Any]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class MessageError(Exception):
    """What came over the wire is no message of ours."""


def pack(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message; ValueError where it is too long, which is a bug of the sender."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message {message.get('kind')!r} of {len(body)} bytes")
    return len(body).to_bytes(_HEAD, "big") + body


def length(head: bytes) -> int:
    """What the first four bytes announce; MessageError for the first bytes of HTTP, TLS and whatever else calls."""
    size = int.from_bytes(head, "big")
    if not 2 <= size <= MAX_BYTES:
        raise MessageError(f"{size} bytes announced")
    return size


def unpack(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise MessageError("not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise MessageError("no object with a kind")
    return message


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next message; EOFError (IncompleteReadError) where the connection ended, MessageError for anything else."""
    size = length(await reader.readexactly(_HEAD))
    return unpack(await reader.readexactly(size))


class Connections:
    """The tasks that serve a server's connections: to be ended with it, or the loop's end leaves them half-way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def served_by(self, serve: Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """For `start_server`: Python 3.11.7 prints a traceback when a task that it made by itself is cancelled."""

        def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return came

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close, and give what was written last a moment to go out."""
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)


@dataclass(frozen=True, slots=True)
class Secret:
    """What both ends must know. Its kind is told openly, its key never: not in a message, a log or a repr."""

    kind: str  # "TRAIN_TOKEN", "file", or "run" (the run's name, which only stops accidents)
    key: bytes = field(repr=False)

    def proof(self, *words: str) -> str:
        """What only a holder of the key can say of these words."""
        # the length of each word, so that no two lists of words are spelt alike
        spelt = "".join(f"{len(word)}:{word}" for word in (self.kind, *words))
        return hmac.new(self.key, spelt.encode(), hashlib.sha256).hexdigest()

    def proves(self, proof: object, *words: str) -> bool:
        return isinstance(proof, str) and hmac.compare_digest(proof.encode(), self.proof(*words).encode())


def random_word() -> str:
    return secrets.token_hex(16)


def text_of(message: Mapping[str, Any], name: str, *, limit: int = 300) -> str:
    """A field as text for people: printable, of bounded length; empty where it is missing."""
    value = message.get(name)
    return "" if value is None else "".join(c if c.isprintable() else "?" for c in str(value)[:limit])


def rank_of(message: Mapping[str, Any], nodes: int) -> int:
    """The node rank in it; MessageError where it is none of this cluster."""
    rank = message.get("rank")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < nodes:
        raise MessageError(f"rank {text_of(message, 'rank')!r} of {nodes} nodes")
    return rank
