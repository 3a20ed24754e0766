"""Two nodes on this machine's loopback as a user starts them: one number of attempts, one end, one exit code."""

import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
import runs

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def start(volume, *words, **variables):
    """Node 0 and node 1, one process each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = {
        "TRAIN_LOCAL_CLUSTER": "1",
        "TRAIN_NODES": "2",
        "TRAIN_NPROC": "1",
        "TRAIN_PRIMARY": f"127.0.0.1:{port}",
        "TRAIN_WAIT": "60",
    }
    script = runs.write_script(volume)
    return [runs.start(volume, script, *words, **cluster, **variables, TRAIN_NODE_RANK=str(n)) for n in (0, 1)]


def finish(nodes):
    ended = [runs.finish(node) for node in nodes]
    return [code for code, _ in ended], [output for _, output in ended]


def test_all_nodes_end_with_the_code_and_the_words_of_the_first_that_failed(tmp_path):
    codes, outputs = finish(start(tmp_path, "do=exit", "code=42", "rank=1", "steps=9999", TRAIN_RESTARTS="1"))
    run = tmp_path / "runs" / "own"
    assert codes == [42, 42], outputs
    for output, name in zip(outputs, ("failure.json", "failure-n1.json"), strict=True):
        assert output.splitlines()[-1] == "first to fail: node 1 rank 1, exit code 42"
        failure = runs.read(run / name)
        assert (failure["node"], failure["rank"], failure["exit_code"]) == (1, 1, 42)
    assert [runs.read(run / name)["exit_code"] for name in ("exit.json", "exit-n1.json")] == [42, 42]
    assert runs.processes_of(run) == []


@pytest.mark.parametrize("killed", [0, 1])
def test_a_node_that_is_killed_while_both_save_leaves_the_other_its_time(killed, tmp_path):
    nodes = start(tmp_path, "steps=9999", "save=6")
    run = tmp_path / "runs" / "own"
    runs.wait_for_step(run, 5)
    for node in nodes:
        node.send_signal(signal.SIGTERM)
    time.sleep(2)
    first = psutil.Process(nodes[killed].pid)
    for process in [first, *first.children(recursive=True)]:
        process.kill()
    codes, outputs = finish(nodes)
    other = 1 - killed
    assert runs.read(run / "logs" / "attempt-0" / f"n{other}r0.ended.json")["exit_code"] == 143, outputs
    assert killed == 0 or list((run / "checkpoints").glob("step-*/manifest.json"))
    assert codes[other] == (143 if killed == 0 else 137), outputs


def test_a_stop_of_one_node_lets_both_save_and_a_finished_run_is_left_alone_by_both(tmp_path):
    nodes = start(tmp_path, "steps=40", "save=6", TRAIN_TOKEN="hidden")
    run = tmp_path / "runs" / "own"
    runs.wait_for_step(run, 5)
    seen = [Path("/proc", str(pid), "environ").read_bytes() for pid in runs.processes_of(run)]
    assert seen
    assert not any(b"hidden" in environment for environment in seen)
    os.kill(nodes[1].pid, signal.SIGTERM)
    codes, outputs = finish(nodes)
    assert codes == [143, 143], outputs
    assert "asked to stop by node 1" in outputs[0]
    assert not any("hidden" in output for output in outputs)
    assert list((run / "checkpoints").glob("step-*/manifest.json"))
    codes, outputs = finish(start(tmp_path, "steps=40", TRAIN_TOKEN="hidden"))
    assert codes == [0, 0], outputs
    codes, outputs = finish(start(tmp_path, "steps=40", TRAIN_TOKEN="hidden"))
    assert codes == [0, 0], outputs
    assert all("own has finished" in output for output in outputs)
