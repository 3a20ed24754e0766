"""Seconds from the first node's start to the word that an attempt begins, for 8, 64 and 512 nodes; one JSON line each.

    python bench/roll_call.py [NODES…]

The nodes are tasks of one process on loopback, with everything that real ones do: the proof, statements, the measuring
toward their peers (all pairs up to 16, then ring distances 1, 2, 4 …). What one process cannot show is 512 machines'
own processors: here one core does the work of all.
"""

import asyncio
import json
import resource
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from entrypoint.coordinator import Coordinator
from entrypoint.member import Event, Member, Start
from entrypoint.reach import Door
from entrypoint.restarts import Decision, Outcome
from entrypoint.seat import Seat
from entrypoint.tally import Report, Tally

DOOR = Door("lo", "127.0.0.1", "127.0.0.0/8")


class Book:
    """No volume: it is not what is measured here."""

    def look(self) -> None:
        pass

    def begin(self) -> int:
        return 0

    def end(self, result: Tally) -> Decision:
        return Decision(None, result.outcome.exit_code)


class Node:
    def __init__(self, seat: Seat) -> None:
        self.started = asyncio.get_running_loop().create_future()
        self.member = Member(seat, self, lambda: {"nodes": seat.nodes, "master_port": 29500}, (DOOR,))

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)

    def heard(self, event: Event) -> None:
        if isinstance(event, Start):
            self.started.set_result(event)
            self.member.tell({"kind": "ended", "attempt": 0, **Report(Outcome(0)).to_message()})


async def trial(nodes: int, volume: Path) -> dict[str, object]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seats = [Seat(volume / "runs" / "b", nodes, rank, f"h{rank}", "127.0.0.1", port, 120) for rank in range(nodes)]
    coordinator = Coordinator(seats[0], Book(), lambda text: print(text, file=sys.stderr))
    await coordinator.open()
    began, used = time.monotonic(), time.process_time()
    deciding = asyncio.create_task(coordinator.run())
    everybody = [Node(seat) for seat in seats]
    running = [asyncio.create_task(node.member.run()) for node in everybody]
    ended = asyncio.gather(*running)
    await asyncio.wait({ended, asyncio.gather(*(node.started for node in everybody))}, return_when="FIRST_COMPLETED")
    begun, used = time.monotonic(), time.process_time() - used
    codes = {over.exit_code for over in await ended}
    await deciding
    over = time.monotonic()
    await coordinator.close()
    tried = sum(len(node.started.result().measured[0].reached) for node in everybody)
    return {
        "bench": "roll_call",
        "nodes": nodes,
        "seconds": round(begun - began, 2),
        "processor_seconds": round(used, 2),  # what the machine's other work does not change
        "seconds_to_end": round(over - begun, 2),
        "ways_measured": tried,
        "exit_codes": sorted(codes),
    }


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # all nodes' sockets are in this process
    for nodes in map(int, sys.argv[1:] or (8, 64, 512)):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(trial(nodes, Path(folder)))), flush=True)


if __name__ == "__main__":
    main()
