"""Seconds from the first node's start to the word that an attempt begins, for 8, 64 and 512 nodes; one JSON line each.

    python bench/roll_call.py [NODES…]

The nodes are tasks of one process on loopback, with everything that real ones do: the proof, statements, the measuring
toward their peers (all pairs up to 16, then ring distances 1, 2, 4 …). One core does here what the cores of 512
machines do at the same time, so the limits of time that tell a dead node from a slow one are lifted.
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

from entrypoint import coordinator, member, reach, reception
from entrypoint.coordinator import Coordinator
from entrypoint.member import Event, Member, Start
from entrypoint.reach import Door
from entrypoint.restarts import Decision, Outcome
from entrypoint.seat import Seat
from entrypoint.tally import Report, Tally

DOOR = Door("lo", "127.0.0.1", "127.0.0.0/8")


class Book:
    """No volume: it is not what is measured here."""

    trial = None

    def look(self) -> dict[int, str]:
        return {}

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
    seats = [Seat(volume / "runs" / "b", nodes, rank, f"h{rank}", "127.0.0.1", port, 600) for rank in range(nodes)]
    node_0 = Coordinator(seats[0], Book(), lambda text: print(text, file=sys.stderr))
    await node_0.open()
    began, used = time.monotonic(), time.process_time()
    deciding = asyncio.create_task(node_0.run())
    everybody = [Node(seat) for seat in seats]
    running = [asyncio.create_task(node.member.run()) for node in everybody]
    ended = asyncio.gather(*running)
    started = asyncio.gather(*(node.started for node in everybody))
    await asyncio.wait({deciding, ended, started}, return_when="FIRST_COMPLETED")
    if deciding.done():
        deciding.result()  # raises what went wrong
    begun, used = time.monotonic(), time.process_time() - used
    overs = await ended
    if overs[0].exit_code:
        raise SystemExit(overs[0].text)
    await deciding
    over = time.monotonic()
    await node_0.close()
    tried = sum(len(node.started.result().measured[0].reached) for node in everybody)
    return {
        "bench": "roll_call",
        "nodes": nodes,
        "seconds": round(begun - began, 2),
        "processor_seconds": round(used, 2),  # what the machine's other work does not change
        "seconds_to_end": round(over - begun, 2),
        "ways_measured": tried,
    }


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    coordinator._MEASURE_SECONDS = 600.0
    member.SILENCE_SECONDS = reception.SILENCE_SECONDS = reception.HANDSHAKE_SECONDS = 600.0
    member._CONNECT_SECONDS = reach.CONNECT_SECONDS = reach.LARGE_SECONDS = reach._VISIT_SECONDS = 600.0
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # all nodes' sockets are in this process
    for nodes in map(int, sys.argv[1:] or (8, 64, 512)):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(trial(nodes, Path(folder)))), flush=True)


if __name__ == "__main__":
    main()
