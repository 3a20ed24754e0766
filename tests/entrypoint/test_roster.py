"""What statements of nodes mean, without any node."""

import pytest

from entrypoint.errors import STOPPED
from entrypoint.failure import Ended
from entrypoint.measured import Measured
from entrypoint.restarts import Outcome
from entrypoint.roster import COMPARED, Absent, compare, peers_of, rank_for, unreachable, waiting_line
from entrypoint.tally import Report, tally


def nodes(count, **of_last):
    same = {row.field: "same" for row in COMPARED}
    all_nodes = {rank: same | {"host": f"h{rank}"} for rank in range(count)}
    all_nodes[count - 1] |= of_last
    return all_nodes


IB = {"hcas": ["mlx5_0"], "link_layer": "InfiniBand", "gbit_per_second": 400.0, "reason": "1 x InfiniBand"}
NO_IB = {"hcas": [], "link_layer": None, "gbit_per_second": 0, "reason": "this node has no HCA"}


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: row.field)
def test_each_difference_names_the_node_both_values_and_a_fix(row):
    found = compare(nodes(3, **{row.field: "other", "rdma": IB}) | {0: nodes(2)[0] | {"rdma": IB}})
    (finding,) = [one for one in found if one.text.startswith(f"{row.what}:")]
    assert finding.level == row.level
    assert finding.text == f"{row.what}: node 2 (h2) has other, 2 others have same"
    assert finding.fix


def test_nodes_that_agree_are_not_remarked_upon():
    assert compare(nodes(8)) == ()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("a", "b"), "node 1 (h1) has b, node 0 (h0) has a"),  # of two, node 0's word counts
        (("a", "b", "b"), "node 0 (h0) has a, 2 others have b"),
        (("a", "a", "b", "b"), "node 2 (h2) has b, 2 others have a (1 more nodes differ)"),
        (("a", None, "a"), "node 1 (h1) has none, 2 others have a"),
    ],
)
def test_the_culprit_is_who_differs_from_most(values, text):
    found = compare({rank: {"host": f"h{rank}", "torch": value} for rank, value in enumerate(values)})
    assert [finding.text for finding in found] == [f"torch: {text}"]


def test_locked_memory_is_of_no_interest_without_rdma():
    assert compare(nodes(2, memlock="65536")) == ()


def test_rdma_on_only_some_nodes_stops_all():
    (finding,) = compare(nodes(2, rdma=NO_IB) | {0: nodes(1)[0] | {"rdma": IB}})
    assert (finding.level, "node 0 has RDMA and node 1" in finding.text) == ("stop", True)


@pytest.mark.parametrize(("offset", "told"), [(29.0, False), (-31.0, True), (4000.0, True)])
def test_a_clock_is_told_from_half_a_minute_on(offset, told):
    assert bool(compare(nodes(2), {0: 0.0, 1: offset})) == told


def test_the_missing_are_named_with_what_is_known_of_them():
    known = {6: Absent(seconds_ago=12, host="f"), 7: Absent(note="g at 10.0.0.9 came with another secret")}
    assert waiting_line(8, [0, 1, 2, 4, 5], 40, known) == (
        "5 of 8 nodes here after 40 s; missing: node 3, node 6 (f, seen 12 s ago), "
        "node 7 (g at 10.0.0.9 came with another secret)"
    )
    assert waiting_line(512, [0], 3, {}).endswith("node 9, node 10 and 501 more")


@pytest.mark.parametrize("count", [2, 3, 16, 17, 64, 100, 512])
def test_every_node_is_tried_by_another_and_nobody_by_too_many(count):
    tried = [peers_of(rank, count) for rank in range(count)]
    assert all(rank not in peers and len(set(peers)) == len(peers) for rank, peers in enumerate(tried))
    assert all((rank + 1) % count in peers for rank, peers in enumerate(tried))
    most = count - 1 if count <= 16 else (count - 1).bit_length()
    assert {len(peers) for peers in tried} == {most}


def way(interface, reached, missed=(), *, large=True):
    return Measured(interface, "10.65.1.0/24", reached, missed, large if reached else None, None, "why")


@pytest.mark.parametrize(
    ("of_node_1", "text"),
    [
        ([way("ens1", (0, 2))], None),
        ([way("eth0", (), (0, 2)), way("ens1", (0, 2))], None),  # one way is enough
        ([], "node 1 (b) has no interface"),
        (
            [way("eth0", (), (0, 2)), way("ens1", (0,), (2,))],
            "node 1 (b) does not reach node 2 (c) over ens1 (why)",
        ),
        ([way("ens1", (0, 2), large=False)], "node 1 (b) connects to node 0 (a) over ens1, but larger packets do not"),
    ],
)
def test_a_way_that_leads_nowhere_is_named(of_node_1, text):
    rows = {0: [way("ens1", (1, 2))], 1: of_node_1, 2: [way("ens1", (0, 1))]}
    found = unreachable(rows, {0: "a", 1: "b", 2: "c"})
    assert (found is None) == (text is None)
    assert found is None or (found.text.startswith(text) and found.fix)


@pytest.mark.parametrize(
    ("machine", "owners", "gone", "expected"),
    [
        ("a", {}, (), 1),
        ("a", {1: "b"}, (), 2),
        ("a", {1: "b", 2: "a"}, (), 2),
        ("a", {1: "b", 2: "c", 3: "d"}, (), None),
        ("a", {1: "b", 2: "c", 3: "d"}, ("c",), 2),
    ],
)
def test_ranks_by_arrival(machine, owners, gone, expected):
    assert rank_for(machine, owners, 4, gone=lambda owner: owner in gone) == expected


def failed(node, code, at, *lines, by_itself=True):
    ended = Ended(node, node, 0, code, failed_at=at, lines=lines)
    return Report(Outcome(code, "text", stepped=True, by_itself=by_itself), (ended,))


FINE = Report(Outcome(0, stepped=True))
SAVED = Report(Outcome(STOPPED, stepped=True, ours=True))
FOR_OTHERS = Report(Outcome(137, "ended", by_itself=False), for_others=True)
CLOSED = "RuntimeError: Connection closed by peer"
HANG = Report(Outcome(137, "hang: no new step", stepped=True, by_itself=False))


@pytest.mark.parametrize(
    ("reports", "lost", "offsets", "code", "node"),
    [
        ({0: FINE, 1: FINE}, {}, {}, 0, None),
        ({0: SAVED, 1: SAVED}, {}, {}, STOPPED, None),
        ({0: FINE, 1: SAVED}, {}, {}, STOPPED, None),
        ({0: failed(0, 5, 100.0), 1: failed(1, 42, 99.0)}, {}, {}, 42, 1),
        ({0: failed(0, 5, 100.0), 1: failed(1, 42, 99.0)}, {}, {1: -3.0}, 5, 0),  # its clock is three seconds behind
        ({0: failed(0, 1, 98.0, CLOSED), 1: failed(1, 42, 99.0)}, {}, {}, 42, 1),  # complains of the other
        ({0: FOR_OTHERS, 1: failed(1, 42, 99.0)}, {}, {}, 42, 1),
        ({0: Report(FOR_OTHERS.outcome, failed(0, 7, 90.0).failed, True), 1: failed(1, 1, 99.0, CLOSED)}, {}, {}, 7, 0),
        ({0: failed(0, 1, 98.0, CLOSED)}, {1: "node 1 (h1) was lost"}, {}, 137, 1),
        ({0: HANG, 1: FOR_OTHERS}, {}, {}, 137, 0),
        ({0: FOR_OTHERS, 1: FOR_OTHERS}, {}, {}, 70, None),
    ],
)
def test_the_end_of_an_attempt_is_the_first_failure_of_all_nodes(reports, lost, offsets, code, node):
    result = tally(3, reports, lost, offsets)
    assert result.outcome.exit_code == code
    assert (result.failure or {}).get("node") == node
    assert result.failure is None or result.failure["attempt"] == 3


def test_a_node_that_is_lost_is_no_fault_of_the_program():
    outcome = tally(0, {0: failed(0, 1, 1.0, CLOSED)}, {1: "node 1 was lost"}, {}).outcome
    assert (outcome.by_itself, outcome.ours, outcome.text) == (False, False, "node 1 was lost")
    assert tally(0, {}, {1: "node 1 was lost"}, {}, stopping=True).outcome.ours


def test_a_report_travels_whole_and_within_bounds():
    long = Report(Outcome(1, "x"), (Ended(0, 0, 0, 1, lines=("y" * 5000,) * 5000),))
    received = Report.of(long.to_message())
    assert received.outcome == long.outcome
    assert sum(map(len, received.failed[0].lines)) <= 40_000
