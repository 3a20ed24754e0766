"""Nodes of a roll call as tasks of one process on loopback: real sockets, real files, no training."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import replace

from entrypoint.coordinator import Coordinator
from entrypoint.joint import RunBook
from entrypoint.member import End, Member, Over, Start, Stop
from entrypoint.messages import pack, receive
from entrypoint.reach import Door
from entrypoint.restarts import Outcome
from entrypoint.run_folder import RunFolder
from entrypoint.seat import Seat
from entrypoint.tally import Report

LOOPBACK = (Door("lo", "127.0.0.1", "127.0.0.0/8"),)
FINE = Report(Outcome(0, stepped=True))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def seats(volume, nodes, **more):
    run = volume / "runs" / "own"
    seat = Seat(run, nodes, 0, "h0", "127.0.0.1", free_port(), wait_seconds=20, **more)
    return [replace(seat, rank=rank, host=f"h{rank}") for rank in range(nodes)]


def statement(**changes):
    return {"nodes": 2, "torch": "2.13.0", "script": "a1", "master_port": free_port(), "clock": time.time(), **changes}


class Node:
    """A member that does what an agent does: each attempt ends as `reports` say, in order; the last one stays."""

    def __init__(self, seat, *reports, doors=LOOPBACK, **changes):
        self.seat, self.reports = seat, list(reports or [FINE])
        self.lines, self.events, self.attempts = [], [], []
        self.member = Member(seat, self, lambda: statement(**{"nodes": seat.nodes} | changes), doors)
        self.task = asyncio.create_task(self.member.run())

    def say(self, text):
        self.lines.append(text)

    def heard(self, event):
        self.events.append(event)
        if isinstance(event, Start):
            self.attempts.append(event.attempt)
            report = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
            if report is not None:
                self.end(report)
        elif isinstance(event, End) and self.attempts:
            self.end(Report(Outcome(137, event.text, by_itself=False), for_others=True))
        elif isinstance(event, Stop):
            self.end(Report(Outcome(143, stepped=True, ours=True)))

    def end(self, report):
        self.member.tell({"kind": "ended", "attempt": self.attempts[-1], **report.to_message()})
        self.member.ready()

    def heard_of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition, seconds=15):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.lines, self.events)
            await asyncio.sleep(0.02)


class Silent(Node):
    """Is there, and says nothing any more: a cable that was pulled closes no connection."""

    async def fall_silent(self):
        self.member.tell = lambda message: None


@asynccontextmanager
async def primary(seat, *, restarts=3):
    """Node 0's coordinator, with its book on the volume."""
    folder = RunFolder(seat.run)
    folder.logs.mkdir(parents=True, exist_ok=True)
    said = []
    coordinator = Coordinator(seat, RunBook(folder, restarts, by_hand=False), said.append)
    coordinator.said = said
    await coordinator.open()
    task = asyncio.create_task(coordinator.run())
    coordinator.task = task
    try:
        yield coordinator
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await coordinator.close()


async def ends(nodes, seconds=20):
    """How each node learnt that it is over: an Over, or the Problem that it ended with."""
    results = await asyncio.wait_for(asyncio.gather(*(n.task for n in nodes), return_exceptions=True), seconds)
    for result in results:
        if isinstance(result, BaseException) and not hasattr(result, "exit_code"):
            raise result
    return results


def codes(results):
    return [result.exit_code for result in results]


def texts(results):
    return [result.text if isinstance(result, Over) else str(result) for result in results]


async def call(seat):
    """A connection to node 0 and its challenge, as a stranger has them."""
    reader, writer = await asyncio.open_connection(seat.address, seat.port)
    return reader, writer, await receive(reader)


async def send(writer, message):
    writer.write(message if isinstance(message, bytes) else pack(message))
    await writer.drain()
