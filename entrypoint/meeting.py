"""The roll call beside the agent: a thread of its own, so that nothing the agent waits for silences the heartbeat."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from entrypoint.coordinator import Book, Coordinator
from entrypoint.errors import NodesError
from entrypoint.member import Event, Member, Over
from entrypoint.messages import Message
from entrypoint.reach import Door
from entrypoint.seat import Seat

_FAREWELL_SECONDS = 15.0


class Meeting:
    """This node's membership, and on node 0 the coordinator too. All methods are for the agent's thread."""

    def __init__(
        self,
        seat: Seat,
        state: Callable[[], dict[str, Any]],
        doors: tuple[Door, ...],
        say: Callable[[str], None],
        *,
        book: Book | None = None,
        ended_elsewhere: Callable[..., Over | None] = lambda *, seated: None,
    ) -> None:
        self._heard: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._say = say
        self._member = Member(seat, self, state, doors, ended_elsewhere=ended_elsewhere)
        self._coordinator = Coordinator(seat, book, say) if book else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roll call", daemon=True)
        self._thread.start()
        self._started.wait()

    def next(self, seconds: float) -> Event | None:
        """What was heard, or None after so long; a Problem of the roll call is raised here."""
        try:
            event = self._heard.get(timeout=seconds) if seconds else self._heard.get_nowait()
        except queue.Empty:
            return None
        if isinstance(event, BaseException):
            raise event
        return event

    def tell(self, kind: str, **fields: Any) -> None:
        self._call(self._member.tell, {"kind": kind, **fields})

    @property
    def is_seated(self) -> bool:
        return self._member.is_seated

    def ready(self) -> None:
        """For another attempt: this node's processes have ended."""
        self._call(self._member.ready)

    def close(self) -> None:
        """Wait until the others have been told how it ended."""
        self._thread.join(timeout=_FAREWELL_SECONDS)

    def heard(self, event: Event) -> None:
        self._heard.put(event)

    def say(self, text: str) -> None:
        self._say(text)

    def _call(self, function: Callable[..., None], *arguments: Message) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended: so has the run
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        with asyncio.Runner() as runner:  # it cancels what is left, and waits for it
            self._loop = runner.get_loop()
            self._started.set()
            try:
                self._heard.put(runner.run(self._meet()))
            except BaseException as error:
                self._heard.put(error)

    async def _meet(self) -> Over:
        if self._coordinator is None:
            return await self._member.run()
        await self._coordinator.open()
        deciding = asyncio.create_task(self._coordinator.run())
        following = asyncio.create_task(self._member.run())
        try:
            await asyncio.wait({deciding, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done() and following.exception():
                deciding.cancel()
                return following.result()
            verdict = await deciding
            self._heard.put(Over(verdict.exit_code, verdict.text, verdict.failure))
            return Over(verdict.exit_code, verdict.text, verdict.failure)
        finally:
            following.cancel()
            await self._coordinator.close()


async def number(seat: Seat, say: Callable[[str], None]) -> int:
    """The rank that node 0 gives this node by arrival; NodesError where all are taken."""

    class Sayer:
        def heard(self, event: Event) -> None:
            pass

        def say(self, text: str) -> None:
            say(text)

    rank = await Member(seat, Sayer(), dict, ()).number()
    if rank is None:
        raise NodesError(
            f"all {seat.nodes} ranks are taken: this node ({seat.host}) is one too many",
            fix="raise the number of nodes, or stop this one",
        )
    return rank
