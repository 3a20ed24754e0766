"""The roll call as a protocol: who is let in, who is named, and that an attempt begins and ends for all at once."""

import asyncio
import json
import socket
import time
from dataclasses import replace

import pytest
from meetings import FINE, Node, Silent, call, codes, ends, primary, seats, send, texts

from entrypoint import coordinator, member, reach, reception, secret
from entrypoint.errors import MachineError
from entrypoint.failure import Ended
from entrypoint.measured import Measured
from entrypoint.member import End, Refused, Start, Stop
from entrypoint.messages import random_word, receive
from entrypoint.restarts import Outcome
from entrypoint.run_folder import RunFolder, write_json
from entrypoint.tally import Report


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The same waits, shorter."""
    monkeypatch.setattr(member, "_FILE_SECONDS", 0.5)
    monkeypatch.setattr(member, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(coordinator, "_SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(coordinator, "_CLAIM_SECONDS", 0.2)
    monkeypatch.setattr(coordinator, "_TICK_SECONDS", 0.05)
    monkeypatch.setattr(coordinator, "_LEAVE_SECONDS", 1.0)
    monkeypatch.setattr(coordinator, "SAY_SECONDS", 0.3)
    monkeypatch.setattr(member, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(reach, "SAMPLE_SECONDS", 0.02)


def failed(code, *, at, lines=("it broke",), rank=0, node=0):
    ended = Ended(node, rank, 0, code, failed_at=at, lines=tuple(lines))
    return Report(Outcome(code, f"rank {rank} failed", stepped=True), (ended,))


def test_nodes_meet_in_any_order_begin_one_attempt_and_end_together(tmp_path):
    async def trial():
        first, *others = seats(tmp_path, 4)
        early = [Node(seat) for seat in others]  # before node 0 listens
        await asyncio.sleep(0.2)
        async with primary(first):
            nodes = [Node(first), *early]
            results = await ends(nodes)
        assert codes(results) == [0, 0, 0, 0]
        starts = [node.heard_of(Start) for node in nodes]
        assert [len(each) for each in starts] == [1] * 4
        assert {(one.attempt, one.port) for (one,) in starts} == {(0, starts[0][0].port)}
        for node in nodes:
            (measured,) = node.heard_of(Start)[0].measured
            assert measured.carries
            assert set(measured.reached) == set(range(4)) - {node.seat.rank}

    asyncio.run(trial())


def test_while_they_wait_the_missing_are_named_and_a_late_one_joins(tmp_path):
    async def trial():
        all_seats = [replace(one, peers=("127.0.0.1", "10.65.0.3", "10.65.0.4")) for one in seats(tmp_path, 3)]
        async with primary(all_seats[0]):
            nodes = [Node(all_seats[0]), Node(all_seats[1])]
            await nodes[1].until(lambda: nodes[1].lines)
            assert nodes[1].lines[-1] == "2 of 3 nodes here after 0 s; missing: node 2 (10.65.0.4)"
            nodes.append(Node(all_seats[2]))
            assert codes(await ends(nodes)) == [0, 0, 0]

    asyncio.run(trial())


def test_who_does_not_come_in_time_is_named_to_all_with_68(tmp_path):
    async def trial():
        all_seats = [replace(one, wait_seconds=1) for one in seats(tmp_path, 3)]
        async with primary(all_seats[0]):
            results = await ends([Node(one) for one in all_seats[:2]])
        assert codes(results) == [68, 68]
        assert "2 of 3 nodes here after 1 s; missing: node 2\n  fix:" in texts(results)[1]

    asyncio.run(trial())


def test_a_node_0_that_does_not_come_is_named_by_the_others(tmp_path):
    async def trial():
        seat = replace(seats(tmp_path, 2)[1], wait_seconds=1)
        (problem,) = await ends([Node(seat)])
        assert problem.exit_code == 68
        assert f"node 0 at {seat.endpoint} was not reached in 1 s: " in str(problem)
        assert "refused" in str(problem)

    asyncio.run(trial())


DIFFERENCES = [
    ({"script": "b2"}, "content of the script: node 2 (h2) has b2, 2 others have a1"),
    ({"nodes": 4}, "number of nodes: node 2 (h2) has 4, 2 others have 3"),
    ({"image": "checkout 12"}, "image: node 2 (h2) has checkout 12, 2 others have none"),
    ({"torch": "2.12.1"}, "torch: node 2 (h2) has 2.12.1, 2 others have 2.13.0"),
    ({"processes": 4}, "processes per node: node 2 (h2) has 4, 2 others have none"),
]


@pytest.mark.parametrize(("changes", "text"), DIFFERENCES)
def test_all_stop_with_the_culprit_where_nodes_differ(tmp_path, changes, text):
    async def trial():
        all_seats = seats(tmp_path, 3)
        async with primary(all_seats[0]):
            nodes = [Node(one, **(changes if one.rank == 2 else {})) for one in all_seats]
            results = await ends(nodes)
        assert codes(results) == [68] * 3
        assert all(text in each and "\n  fix: " in each for each in texts(results)), texts(results)

    asyncio.run(trial())


def test_a_difference_is_told_soon_though_another_node_is_missing(tmp_path):
    async def trial():
        all_seats = seats(tmp_path, 3)
        async with primary(all_seats[0]):
            results = await ends([Node(all_seats[0]), Node(all_seats[1], script="b2")], seconds=5)
        assert codes(results) == [68, 68]

    asyncio.run(trial())


def test_a_clock_that_is_wrong_is_told_and_stops_nobody(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            nodes = [Node(first), Node(second, clock=time.time() - 90)]
            assert codes(await ends(nodes)) == [0, 0]
        for node in nodes:
            assert "warn  clock: node 1 (h1) is -90 s from node 0's" in node.lines

    asyncio.run(trial())


def test_two_nodes_of_one_rank_stop_all_and_both_are_named(tmp_path):
    async def trial():
        first, second, _ = seats(tmp_path, 3)
        async with primary(first):
            nodes = [Node(first), Node(second), Node(replace(second, host="copy"))]
            results = await ends(nodes)
        assert codes(results) == [68] * 3
        text = texts(results)[0]
        assert "two nodes say that they are node 1" in text
        assert "h1 (127.0.0.1)" in text
        assert "copy (127.0.0.1)" in text

    asyncio.run(trial())


def test_a_second_node_0_is_named_to_all(tmp_path):
    async def trial():
        first, second, _ = seats(tmp_path, 3)
        async with primary(first):
            nodes = [Node(first), Node(second)]
            await asyncio.sleep(0.3)
            write_json(RunFolder(first.run).rival, {"host": "copy"})
            results = await ends(nodes)
        assert codes(results) == [68, 68]
        assert f"two nodes say that they are node 0: {socket.gethostname()} and copy" in texts(results)[1]

    asyncio.run(trial())


def test_a_node_of_a_rank_that_trains_is_refused_alone(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            nodes = [Node(first, None), Node(second, None)]
            await nodes[1].until(lambda: nodes[1].attempts)
            (refused,) = await ends([Node(replace(second, host="copy"))])
            assert refused.exit_code == 68
            assert "two nodes say that they are node 1" in refused.text
            assert not nodes[0].heard_of(End)
            for node in nodes:
                node.end(FINE)
            assert codes(await ends(nodes)) == [0, 0]

    asyncio.run(trial())


# ---- who is not let in ----


def test_who_has_another_volume_is_named_to_all(tmp_path):
    async def trial():
        all_seats = seats(tmp_path, 3)
        elsewhere = replace(all_seats[2], run=tmp_path / "elsewhere" / "runs" / "own")
        async with primary(all_seats[0]):
            nodes = [Node(all_seats[0]), Node(all_seats[1]), Node(elsewhere)]
            results = await ends(nodes)
        assert codes(results) == [68] * 3
        assert "node 2 (h2) at 127.0.0.1 does not see node 0's shared volume" in texts(results)[0]
        assert ".own.token: No such file or directory" in texts(results)[1]

    asyncio.run(trial())


def test_a_token_does_not_stand_in_for_the_volume(tmp_path):
    async def trial():
        all_seats = seats(tmp_path, 2, token="t")
        elsewhere = replace(all_seats[1], run=tmp_path / "elsewhere" / "runs" / "own")
        async with primary(all_seats[0]):
            results = await ends([Node(all_seats[0]), Node(elsewhere)])
        assert codes(results) == [68, 68]
        assert "shared volume: node 1 (h1) has another one" in texts(results)[0]

    asyncio.run(trial())


@pytest.mark.parametrize(
    ("theirs", "ours", "text"),
    [
        ("right", "wrong", "does not take this node's TRAIN_TOKEN"),
        ("right", None, "asks for TRAIN_TOKEN, which is not set here"),
        (None, "right", "TRAIN_TOKEN is set here, and not on node 0"),
    ],
)
def test_another_token_is_told_at_once_and_disturbs_nobody(tmp_path, theirs, ours, text):
    async def trial():
        first, second = seats(tmp_path, 2, token=theirs)
        async with primary(first) as node_0:
            here = Node(first)
            (refused,) = await ends([Node(replace(second, token=ours))], seconds=5)
            assert isinstance(refused, Refused)
            assert refused.exit_code == 68
            assert text in str(refused)
            assert not here.task.done()
            assert codes(await ends([here, Node(second)])) == [0, 0]
            assert "right" not in str(refused) + "".join(here.lines + node_0.said)

    asyncio.run(trial())


def test_another_run_at_this_address_is_told_by_name(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            (refused,) = await ends([Node(replace(second, run=second.run.with_name("other")))])
        assert "is the roll call of run 'own'; this node is for run 'other'" in str(refused)

    asyncio.run(trial())


def test_a_primary_that_does_not_know_the_secret_is_not_followed(tmp_path):
    async def foreign(reader, writer):
        challenge = {"kind": "challenge", "version": 1, "run": "own", "secret": "TRAIN_TOKEN", "word": "w"}
        await send(writer, challenge)
        await receive(reader)
        await send(writer, {"kind": "welcome", "proof": "0" * 64, "file": "x"})
        writer.close()

    async def trial():
        seat = seats(tmp_path, 2, token="t")[1]
        async with await asyncio.start_server(foreign, "127.0.0.1", seat.port):
            (refused,) = await ends([Node(seat)])
        assert "does not know the secret of this run" in str(refused)

    asyncio.run(trial())


async def wrong_proof(seat):
    _, writer, _ = await call(seat)
    await send(writer, {"kind": "answer", "word": "w", "proof": "0" * 64, "rank": 1, "host": "evil"})
    return writer


async def bytes_of(seat, data):
    _, writer, _ = await call(seat)
    await send(writer, data)
    return writer


async def hostile_claim(seat):
    _, writer, challenge = await call(seat)
    proof = secret.of_run("wrong").proof("claim", challenge["word"], "w", "own")
    await send(writer, {"kind": "claim", "word": "w", "proof": proof, "rank": 1, "host": "evil", "why": "no"})
    return writer


async def odd_statement(seat):
    """One that has the secret, and says what no node would."""
    reader, writer, challenge = await call(seat)
    mine = random_word()
    proof = seat.own_secret().proof("node", challenge["word"], mine, seat.run.name)
    await send(writer, {"kind": "answer", "word": mine, "proof": proof, "rank": 1, "host": "odd"})
    await receive(reader)
    await send(writer, {"kind": "join", "rank": 1, "host": "odd", "agent": "a"})
    await send(writer, {"kind": "statement", "statement": {"clock": "x", "doors": 7}})
    await send(writer, {"kind": "measured", "rows": [{"a": 1}]})
    return writer


HOSTILE = {
    "an HTTP client": lambda seat: bytes_of(seat, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a TLS client": lambda seat: bytes_of(seat, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)),
    "who announces 4 GB": lambda seat: bytes_of(seat, b"\xff\xff\xff\xff" + bytes(5000)),
    "who sends a pickle": lambda seat: bytes_of(seat, b"\0\0\0\x08\x80\x04\x95\0\0\0\0\0"),
    "who says nothing": lambda seat: bytes_of(seat, b""),
    "who stops in the middle": lambda seat: bytes_of(seat, b"\0\0\1\0{"),
    "who has no proof": wrong_proof,
    "who claims without the run's name": hostile_claim,
    "who sends odd messages": odd_statement,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nobody_is_disturbed_by(tmp_path, what):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            here = Node(first)
            await here.until(lambda: first.token_path.exists())
            writers = [await HOSTILE[what](first) for _ in range(20 if what != "who sends odd messages" else 1)]
            await asyncio.sleep(0.2)
            assert codes(await ends([here, Node(second)])) == [0, 0]
            for writer in writers:
                writer.close()
            await asyncio.sleep(0.05)

    asyncio.run(trial())


def test_who_proves_nothing_is_gone_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(reception, "HANDSHAKE_SECONDS", 0.2)

    async def trial():
        first, _ = seats(tmp_path, 2)
        async with primary(first):
            reader, writer, _ = await call(first)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()

    asyncio.run(trial())


def test_a_port_that_is_taken_is_told(tmp_path):
    async def trial():
        first, _ = seats(tmp_path, 2)
        async with await asyncio.start_server(lambda r, w: None, "127.0.0.1", first.port):
            with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1, port {first.port}"):
                async with primary(first):
                    pass

    asyncio.run(trial())


# ---- attempts ----


def test_a_failure_ends_the_attempt_on_all_and_the_next_has_a_higher_number(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            nodes = [Node(first, None, FINE), Node(second, failed(42, at=100.0, rank=1, node=1), FINE)]
            results = await ends(nodes)
        assert codes(results) == [0, 0]
        assert [node.attempts for node in nodes] == [[0, 1], [0, 1]]
        assert "node 1 (h1): rank 1 failed" in nodes[0].heard_of(End)[0].text
        assert any("starting again in 1 s (1 of 3 attempts" in line for line in nodes[1].lines)
        failure = json.loads((first.run / "failure.json").read_text())
        assert (failure["node"], failure["rank"], failure["exit_code"]) == (1, 1, 42)

    asyncio.run(trial())


def test_no_progress_ends_in_76_on_all_nodes(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first, restarts=2):
            nodes = [Node(first, None), Node(second, failed(42, at=1.0))]
            results = await ends(nodes)
            again = [first, second]
        async with primary(first, restarts=2):  # the volume remembers: nothing is started any more
            more = await ends([Node(one) for one in again])
        assert codes(results) == [76, 76]
        assert codes(more) == [76, 76]
        assert "in 2 attempts in a row" in texts(results)[1]

    asyncio.run(trial())


def test_a_program_that_fails_before_its_first_step_ends_everywhere_with_its_code(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        ended = Ended(1, 1, 0, 3, failed_at=1.0, lines=("ImportError: x",))
        early = Report(Outcome(3, "first to fail: node 1 rank 1, exit code 3"), (ended,))
        async with primary(first):
            results = await ends([Node(first, None), Node(second, early)])
        assert codes(results) == [3, 3]
        assert results[0].failure["lines"] == ["ImportError: x"]
        assert "not started again" in results[0].text

    asyncio.run(trial())


def test_a_node_that_dies_ends_the_attempt_and_another_host_takes_its_rank(tmp_path):
    async def trial():
        all_seats = seats(tmp_path, 3)
        async with primary(all_seats[0]):
            nodes = [Node(one, None, FINE) for one in all_seats]
            await nodes[2].until(lambda: nodes[2].attempts)
            await nodes[0].until(lambda: nodes[0].attempts)
            nodes[2].task.cancel()  # its connection closes
            await nodes[0].until(lambda: nodes[0].heard_of(End), seconds=2)
            assert nodes[0].heard_of(End)[0].text == "node 2 (h2) was lost: its connection closed"
            nodes[2] = Node(replace(all_seats[2], host="spare"))
            assert codes(await ends(nodes)) == [0, 0, 0]
        assert [node.attempts for node in nodes] == [[0, 1], [0, 1], [1]]

    asyncio.run(trial())


def test_a_node_that_is_silent_is_lost_after_its_time(tmp_path, monkeypatch):
    for module in (member, reception):
        monkeypatch.setattr(module, "SILENCE_SECONDS", 1.0)

    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            nodes = [Node(first, None, FINE), Silent(second, None, FINE)]
            await nodes[1].until(lambda: nodes[1].attempts)
            await nodes[1].fall_silent()
            began = time.monotonic()
            await nodes[0].until(lambda: nodes[0].heard_of(End))
            assert 0.5 < time.monotonic() - began < 3
            assert "was lost: silent for 1 s" in nodes[0].heard_of(End)[0].text
            nodes[1].task.cancel()
            nodes[1] = Node(second)
            assert codes(await ends(nodes)) == [0, 0]

    asyncio.run(trial())


def test_a_primary_that_comes_back_gathers_the_others_again(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first) as lost:
            nodes = [Node(first, None), Node(second, None, FINE)]
            await nodes[1].until(lambda: nodes[1].attempts)
            nodes[0].task.cancel()
            lost.task.cancel()
            await asyncio.sleep(0)
            for guest in list(lost._guests.values()):
                guest.writer.transport.abort()
        await nodes[1].until(lambda: nodes[1].heard_of(End))
        assert "node 0 was lost" in nodes[1].heard_of(End)[0].text
        async with primary(first):
            nodes[0] = Node(first)
            assert codes(await ends(nodes)) == [0, 0]
        assert nodes[1].attempts == [0, 1]

    asyncio.run(trial())


def test_a_stop_that_one_node_is_asked_for_reaches_all(tmp_path):
    async def trial():
        all_seats = seats(tmp_path, 3)
        async with primary(all_seats[0]):
            nodes = [Node(one, None) for one in all_seats]
            await nodes[1].until(lambda: all(node.attempts for node in nodes))
            nodes[1].member.tell({"kind": "stop", "text": "a signal"})
            results = await ends(nodes)
        assert codes(results) == [143] * 3

    asyncio.run(trial())


def test_a_node_that_goes_while_all_save_ends_nobody(tmp_path):
    class Saving(Node):
        def heard(self, event):
            if not isinstance(event, Stop):
                super().heard(event)

    async def trial():
        all_seats = seats(tmp_path, 3)
        async with primary(all_seats[0]):
            nodes = [Saving(one, None) for one in all_seats]
            await nodes[1].until(lambda: all(node.attempts for node in nodes))
            nodes[1].member.tell({"kind": "stop", "text": "a signal"})
            await asyncio.sleep(0.5)
            nodes[2].task.cancel()  # its connection closes
            await asyncio.sleep(1)
            assert not any(node.heard_of(End) for node in nodes[:2])
            for node in nodes[:2]:
                node.end(Report(Outcome(143, stepped=True, ours=True)))
            results = await ends(nodes[:2])
        assert codes(results) == [137, 137]
        assert texts(results) == ["node 2 (h2) was lost: its connection closed"] * 2

    asyncio.run(trial())


def test_a_stop_before_the_training_ends_the_roll_call_for_all(tmp_path):
    async def trial():
        all_seats = seats(tmp_path, 3)
        async with primary(all_seats[0]):
            nodes = [Node(one) for one in all_seats[:2]]
            await nodes[1].until(lambda: nodes[1].lines)
            nodes[1].member.tell({"kind": "stop", "text": "a signal"})
            assert codes(await ends(nodes)) == [143, 143]

    asyncio.run(trial())


def test_a_plan_that_fails_on_one_node_ends_all_with_its_code_and_name(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            nodes = [Node(first, None), Node(second, None)]
            await nodes[1].until(lambda: nodes[1].attempts)
            nodes[1].member.tell({"kind": "problem", "exit_code": 69, "problem": "no GPU", "fix": "get one"})
            results = await ends(nodes)
        assert codes(results) == [69, 69]
        assert "node 1 (h1): no GPU" in texts(results)[0]

    asyncio.run(trial())


# ---- the network ----


def test_a_way_that_leads_nowhere_is_told_with_both_nodes_and_the_interface(tmp_path, monkeypatch):
    async def measure(own, peers, following):
        (door,) = own
        rows = {peer.rank: peer.rank for peer in peers}
        return (Measured("ens1", door.network, (), tuple(rows), None, None, "10.65.1.2 to 10.65.1.3: refused"),)

    async def trial():
        first, second = seats(tmp_path, 2)
        monkeypatch.setattr(member, "measure", measure)
        async with primary(first):
            results = await ends([Node(first), Node(second)])
        assert codes(results) == [68, 68]
        assert "node 0 (h0) does not reach node 1 (h1) over ens1 (10.65.1.2 to 10.65.1.3: refused)" in texts(results)[0]

    asyncio.run(trial())


def test_a_node_without_an_interface_is_told(tmp_path):
    async def trial():
        first, second = seats(tmp_path, 2)
        async with primary(first):
            results = await ends([Node(first), Node(second, doors=())])
        assert codes(results) == [68, 68]
        assert "node 1 (h1) has no interface" in texts(results)[0]

    asyncio.run(trial())


# ---- ranks by arrival ----


def test_ranks_by_arrival_are_distinct_and_stay_with_their_hosts(tmp_path):
    async def numbers(first, hosts):
        async with primary(first):
            unnumbered = [replace(first, rank=None, host=host) for host in hosts]
            return [await member.Member(seat, Node.__new__(Node), dict, ()).number() for seat in unnumbered]

    first = seats(tmp_path, 4)[0]
    assert asyncio.run(numbers(first, ["a", "b", "a", "c"])) == [1, 2, 1, 3]
    assert asyncio.run(numbers(first, ["c", "a", "b"])) == [3, 1, 2]  # node 0 came back: the volume remembers
    assert asyncio.run(numbers(first, ["d"])) == [1]  # the owner of 1 is gone, and d replaces it
