"""`local`: a cluster on loopback, as a person types it; with real networks it is in tests/cluster."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
import runs

from entrypoint.local import Nodes


def start(volume, *words, nodes=2, processes=1, before=(), **variables):
    return subprocess.Popen(
        [*before, sys.executable, "-m", "entrypoint", "local", f"--nodes={nodes}", f"--processes={processes}", *words],
        cwd=runs.ROOT,
        env=runs.environment(volume, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def script(tmp_path):
    yield str(runs.write_script(tmp_path))
    run = tmp_path / "runs" / "own"
    runs.wait_for(lambda: not runs.processes_of(run), f"left: {runs.processes_of(run)}", seconds=10)


@pytest.mark.parametrize(
    ("gpus", "first", "second"),
    [
        ((), None, None),
        (("GPU-a", "GPU-b", "GPU-c", "GPU-d"), "GPU-a,GPU-b", "GPU-c,GPU-d"),
        (("GPU-a", "GPU-b"), "", ""),
    ],
)
def test_nodes_share_out_the_gpus_or_have_none(gpus, first, second):
    nodes = Nodes(2, 2, ["ddp"], {}, gpus=gpus)
    assert [node.environment.get("CUDA_VISIBLE_DEVICES") for node in nodes.nodes] == [first, second]


def test_a_node_has_what_a_cluster_sets_and_nothing_of_the_launcher_around_it():
    around = {"RANK": "3", "WORLD_SIZE": "8", "TRAIN_INTERFACE": "eth7", "TRAIN_RUN": "mine", "OMP_NUM_THREADS": "5"}
    first, second = (node.environment for node in Nodes(2, 4, ["ddp"], around).nodes)
    port = re.fullmatch(r"127\.0\.0\.2:(\d+)", first["TRAIN_PRIMARY"])[1]
    assert second == {
        "TRAIN_NODES": "2",
        "TRAIN_NODE_RANK": "1",
        "TRAIN_NPROC": "4",
        "TRAIN_PRIMARY": f"127.0.0.2:{port}",
        "NODE_RANK": "1",
        "NODE_ADDR": "127.0.0.3",
        "TRAIN_LOCAL_CLUSTER": "1",
        "TRAIN_RUN": "mine",
        "OMP_NUM_THREADS": "5",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="drops rights, which takes root")
@pytest.mark.parametrize(
    ("before", "quoted"),
    [
        (("setpriv", "--reuid", "65534"), "namespaces take root"),
        (("setpriv", "--inh-caps=-all", "--bounding-set=-all"), "does not let us make namespaces"),
    ],
    ids=["nobody", "root of a container"],
)
def test_without_the_rights_namespaces_are_refused_in_one_line(tmp_path, before, quoted):
    process = start(tmp_path, "--namespaces", "ddp", before=before)
    code, output = runs.finish(process)
    assert code == 69, output
    assert quoted in output
    assert "fix:" in output
    assert "Traceback" not in output


@pytest.mark.torch
@pytest.mark.slow
class TestRuns:
    def test_all_nodes_train_together(self, tmp_path, script):
        code, output = runs.finish(start(tmp_path, script, "steps=3", processes=2))
        assert code == 0, output
        for node, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
            assert f"node {node} | [n{node}r{rank}] step 3" in output.splitlines(), output
        assert "local  | node 0 ended with 0" in output
        assert "local  | node 1 ended with 0" in output

    def test_the_first_failure_is_the_exit_code(self, tmp_path, script):
        words = ("do=exit", "code=42", "rank=1", "steps=1000")
        code, output = runs.finish(start(tmp_path, script, *words, TRAIN_RESTARTS="1"))
        assert code == 42, output

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_one_signal_stops_all_nodes_and_lets_them_save(self, tmp_path, script, number):
        process = start(tmp_path, script, "steps=1000", "save=2")
        run = tmp_path / "runs" / "own"
        runs.wait_for_step(run, 2)
        process.send_signal(number)
        code, output = runs.finish(process)
        assert code == 143, output
        assert len(list((run / "checkpoints").glob("step-*/manifest.json"))) == 1

    def test_a_node_that_is_killed_is_started_again_and_the_run_goes_on(self, tmp_path, script):
        process = start(tmp_path, script, "steps=60", "every=5")
        run = tmp_path / "runs" / "own"
        runs.wait_for_step(run, 10)
        second = next(
            child for child in psutil.Process(process.pid).children() if child.environ()["TRAIN_NODE_RANK"] == "1"
        )
        second.kill()
        code, output = runs.finish(process)
        assert code == 0, output
        assert "node 1 was killed; starting it again" in output
        assert (run / "logs" / "attempt-1").is_dir()

    def test_nothing_is_left_when_it_is_killed_itself(self, tmp_path, script):
        process = start(tmp_path, script, "steps=1000")
        runs.wait_for_step(tmp_path / "runs" / "own", 2)
        process.kill()
        process.communicate()
