"""What the nodes tell each other before anything starts: who is missing, and who is not like the others."""

import re

import pytest
import trial

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
QUICK = "import os; print('interface', os.environ.get('GLOO_SOCKET_IFNAME'))\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(QUICK)
    return path


def test_a_missing_node_is_named_and_may_come_late(tmp_path, script):
    with trial.Trial(tmp_path, 3, script) as run:
        run.start(0, 1)
        both_ready = run.wait_for_line("command ", nodes=[0, 1])  # the last line of their plans
        named = run.wait_for_line("2 of 3 nodes here", nodes=[0, 1])
        assert named - both_ready < 10, run.text()
        assert "missing: node 2" in run.text(0)
        assert "missing: node 2" in run.text(1)
        run.start(2)
        assert run.finish() == [0, 0, 0], run.text()


def test_a_node_that_never_comes_is_named_in_the_end(tmp_path, script):
    with trial.Trial(tmp_path, 3, script, variables={"TRAIN_WAIT": "5"}) as run:
        run.start(0, 2)
        run.wait_for(lambda: run.nodes[0].code is not None and run.nodes[2].code is not None, "no end")
        assert (run.nodes[0].code, run.nodes[2].code) == (68, 68), run.text()
    for node in (0, 2):
        assert "missing: node 1" in error_of(run, node), run.text()


def differ(run, node, **variables):
    run.nodes[node].environment |= variables


def other_script(run, tmp_path):
    path = tmp_path / "there" / "own.py"
    path.parent.mkdir()
    path.write_text(QUICK + "# edited\n")
    run.nodes[1].command[-1] = str(path)


def other_volume(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    differ(run, 1, TRAIN_VOLUME=str(tmp_path / "elsewhere"))


# what differs → how, and what every node but that one has to quote
DIFFERENCES = {
    "rank": (lambda run, _: differ(run, 2, TRAIN_NODE_RANK="1", NODE_RANK="1"), ("two nodes", "node 1", "node2")),
    "primary": (lambda run, _: differ(run, 2, TRAIN_NODE_RANK="0", NODE_RANK="0"), ("two nodes", "node 0", "node2")),
    "world size": (lambda run, _: differ(run, 1, TRAIN_NODES="4"), ("number of nodes", "node 1 (node1)")),
    "processes": (lambda run, _: differ(run, 1, TRAIN_NPROC="2"), ("processes per node", "node 1 (node1)")),
    "script": (other_script, ("script", "node 1 (node1)")),
    "arguments": (lambda run, _: run.nodes[1].command.append("--lr=2"), ("arguments", "node 1 (node1)")),
    "volume": (other_volume, ("volume", "node 1 (node1)")),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_who_differs_is_named_and_stops_every_node(what, tmp_path, script):
    make_it_differ, quoted = DIFFERENCES[what]
    with trial.Trial(tmp_path, 3, script) as run:
        make_it_differ(run, tmp_path)
        run.start()
        assert run.finish() == [68, 68, 68], run.text()
    seconds = run.wait_for_line("error: ") - run.wait_for_line("command ", nodes=[0, 1])
    assert seconds < 20, run.text()
    culprit = 2 if "two nodes" in quoted else 1
    for node in range(3):
        told = error_of(run, node)
        assert quoted[0] in told, run.text()
        assert node == culprit or all(part in told for part in quoted), run.text()


@pytest.mark.parametrize(("name", "value"), [("TRAIN_RUN", "another"), ("TRAIN_TOKEN", "mine")])
def test_a_stranger_learns_why_and_the_others_go_on_waiting(name, value, tmp_path, script):
    with trial.Trial(tmp_path, 2, script, variables={"TRAIN_WAIT": "6"}) as run:
        differ(run, 1, **{name: value})
        run.start()
        assert run.finish() == [68, 68], run.text()
    assert name in error_of(run, 1), run.text()
    assert "missing: node 1" in error_of(run, 0), run.text()


def error_of(run, node):
    """Its last words: one line, and the fix."""
    told = run.text(node).partition("error:")[2]
    assert "fix:" in told, run.text()
    assert "Traceback" not in run.text(node), run.text()
    return told


NAME = "node-0.svc.local"  # no node's host name, and at the second address of node 0


def by_name(run):
    for node in run.nodes.nodes:
        node.environment["TRAIN_PRIMARY"] = f"{NAME}:29500"


def make_known(run, *nodes):
    for node in nodes:
        run.networks.on(node, f"echo '{run.networks.address(0, 1)} {NAME}' >> /etc/hosts")


@pytest.mark.torch
@pytest.mark.parametrize("first", [0, 1])
def test_who_listens_follows_from_the_rank_whatever_name_the_primary_has(first, tmp_path, undisturbed):
    with trial.Trial(tmp_path, 2, trial.SCRIPT, 5) as run:
        by_name(run)
        make_known(run, 0, 1)
        run.start(first)
        run.wait_for_line("command " if first == 0 else "waiting for node 0 at", nodes=[first])
        run.start(1 - first)
        assert run.finish() == [0, 0], run.text()
        made = {record["step"]: record["loss"] for record in run.records()}
    assert made == pytest.approx({step: undisturbed[step] for step in range(1, 6)}, rel=1e-4)


def test_a_primary_whose_name_comes_late_and_whose_port_comes_later_costs_no_attempt(tmp_path, script):
    with trial.Trial(tmp_path, 2, script) as run:
        by_name(run)
        run.start(1)
        run.wait_for_line(f"waiting for the primary's name '{NAME}'", nodes=[1])
        make_known(run, 0, 1)
        run.wait_for_line(f"waiting for node 0 at {NAME}:29501", nodes=[1])
        assert run.nodes[1].code is None
        run.start(0)
        assert run.finish() == [0, 0], run.text()
    assert [path.name for path in (run.run / "logs").glob("attempt-*")] == ["attempt-0"]


def test_ranks_by_arrival_begin_at_the_primary_and_stay_with_their_hosts(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import os\nprint('host', os.uname().nodename, 'rank', os.environ['RANK'], os.environ['TRAIN_ATTEMPT'])\n"
        "if os.environ['TRAIN_ATTEMPT'] == '0' and os.environ['RANK'] == '0': os.kill(os.getpid(), 9)\n"
    )
    with trial.Trial(tmp_path, 3, script) as run:
        for node in run.nodes.nodes:
            told = node.environment
            for name in ("TRAIN_NODES", "TRAIN_NODE_RANK", "TRAIN_NPROC", "NODE_RANK"):
                told.pop(name, None)
            endpoint = told.pop("TRAIN_PRIMARY")
            node.environment = told | {"PET_NNODES": "2:3", "PET_NPROC_PER_NODE": "1", "PET_RDZV_ENDPOINT": endpoint}
        run.start(2)
        run.wait_for_line("waiting for node 0 at", nodes=[2], seconds=15)
        run.start(1, 0)
        assert run.finish() == [0, 0, 0], run.text()
        told = re.findall(r"host (\S+) rank (\d) (\d)", run.text())
    ranks = [{host: rank for host, rank, attempt in told if attempt == number} for number in "01"]
    assert ranks[0] == ranks[1]
    assert ranks[0]["node0"] == "0"
    assert sorted(ranks[0].values()) == ["0", "1", "2"]
