"""The rendered batch script under a real Slurm: two nodes, their signals, and what is queued again.

Through the entrypoint of this checkout, without a container. No test relies on when Slurm signals.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import slurm
import trial
from leave_out import leave_out

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
STEPS, STOPS = (ROOT / "tests" / "cluster" / name for name in ("steps.py", "stops.py"))
HOLD = 17  # of stops.py


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := slurm.missing():
        leave_out(why)
    with slurm.Slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def submit(cluster, tmp_path):
    """Render a batch script as a person does, and give it to Slurm."""
    jobs = []

    def submit(script, arguments="", options=(), **keys):
        keys = {"args": arguments, "volume": tmp_path, "checkout": checkout(tmp_path), "grace": 20} | keys
        words = [f"--set={name}={value}" for name, value in keys.items()]
        words += ["--set=env.TRAIN_NPROC=1", "--set=env.OMP_NUM_THREADS=1"]
        file = tmp_path / "train.sbatch"
        render = [sys.executable, "-m", "entrypoint", "render", "slurm", "--script", str(script)]
        subprocess.run([*render, "--nodes", "2", "--gpus", "0", *words, "-o", str(file)], cwd=ROOT, check=True)
        jobs.append(cluster.submit(file, *options))
        return jobs[-1]

    yield submit
    for job in jobs:
        if job.state not in slurm.ENDED:
            job.cancel()
    cluster.wait_for_nodes()


def checkout(folder):
    """This tree with the environment that runs the tests: the template starts `.venv/bin/python` of a checkout."""
    made = folder / "check out"
    if not made.exists():
        made.mkdir()
        for name, target in {"entrypoint": ROOT / "entrypoint", "train": ROOT / "train", ".venv": sys.prefix}.items():
            (made / name).symlink_to(target)
    return made


def losses(run):
    """step → loss, where no step was made twice."""
    records = [record for record in trial.read_lines(run / "metrics.jsonl") if "loss" in record]
    found = {record["step"]: record["loss"] for record in records}
    assert len(found) == len(records), "a step was made twice"
    return found


def test_two_nodes_make_the_steps_of_one(submit, tmp_path):
    words = "--steps 8 --seq-length 16 --global-batch 2 --log-every 1 --eval-every 1000"
    job = submit("ddp", words)
    alone = tmp_path / "alone"
    alone.mkdir()
    variables = trial.variables_of(alone) | {"TRAIN_NPROC": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "entrypoint", "train", "ddp", *words.split()]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.wait() == ("COMPLETED", 0), job
    run = tmp_path / "runs" / "ddp"
    assert losses(run) == pytest.approx(losses(alone / "runs" / "ddp"), rel=1e-4)
    assert sorted(losses(run)) == list(range(1, 9))
    plans = [json.loads((run / name).read_text()) for name in ("plan.json", "plan-n1.json")]
    assert [plan["cluster"]["node_rank"] for plan in plans] == [0, 1]
    for plan in plans:  # the names of nodes are on the slow network: what was measured decides
        assert {one["name"]: one["value"] for one in plan["settings"]}["GLOO_SOCKET_IFNAME"] == "ens1"


def test_before_the_time_limit_both_nodes_save_and_the_same_job_goes_on(submit, tmp_path, undisturbed):
    job = submit(STOPS, str(trial.STEPS))
    run = tmp_path / "runs" / "stops"
    job.wait_for(lambda: HOLD in losses(run), "no step")
    job.come_near_the_limit(notice=155)
    job.start_again_now(TimeLimit=60)
    assert (run / "checkpoints" / f"step-{HOLD}" / "manifest.json").exists(), job
    assert [len(list((run / "checkpoints").glob(f"step-{HOLD}/part-{rank}.pt"))) for rank in range(2)] == [1, 1]
    assert json.loads((run / "exit.json").read_text())["exit_code"] == 143
    assert job.wait() == ("COMPLETED", 0), job
    assert job.restarts == 1
    assert losses(run) == pytest.approx(undisturbed, rel=1e-4)


def test_a_job_that_is_cancelled_has_saved_and_another_goes_on(submit, tmp_path, undisturbed):
    job = submit(STOPS, str(trial.STEPS))
    run = tmp_path / "runs" / "stops"
    job.wait_for(lambda: HOLD in losses(run), "no step")
    job.cancel()
    assert job.wait()[0] == "CANCELLED", job
    job.wait_for((run / "checkpoints" / f"step-{HOLD}" / "manifest.json").exists, "it did not save")
    another = submit(STOPS, str(trial.STEPS))
    assert another.wait() == ("COMPLETED", 0), another
    assert losses(run) == pytest.approx(undisturbed, rel=1e-4)


def test_a_node_that_is_killed_does_not_cut_the_last_checkpoint_of_another(submit, cluster, tmp_path):
    job = submit(STOPS, f"{trial.STEPS} 8")  # twice what this Slurm gives a step that it ends
    run = tmp_path / "runs" / "stops"
    job.wait_for(lambda: HOLD in losses(run), "no step")
    job.signal("TERM")
    partial = run / "checkpoints" / f"step-{HOLD}.0.partial"
    job.wait_for((partial / "part-1.pt").exists, "node 1 did not save")
    for process in cluster.processes(1, "entrypoint train"):
        process.kill()
    state, code = job.wait()
    assert (run / "checkpoints" / f"step-{HOLD}" / "manifest.json").exists(), job
    assert state == "FAILED", job
    assert code in (137, 143), job


def test_a_node_that_is_lost_once_costs_no_step(submit, cluster, tmp_path, undisturbed):
    job = submit(STEPS, str(trial.STEPS))
    run = tmp_path / "runs" / "steps"
    held = run / "checkpoints" / f"step-{trial.HOLD}" / "manifest.json"
    job.wait_for(held.exists, "no step")
    cluster.kill_node(1)
    job.wait_for(lambda: job.restarts == 1, "Slurm did not notice")
    cluster.start_node(1)
    job.start_again_now()
    assert job.wait() == ("COMPLETED", 0), job
    assert losses(run) == pytest.approx(undisturbed, rel=1e-4)


def test_a_wrong_setting_is_not_queued_again(submit, tmp_path):
    job = submit(tmp_path / "missing.py")
    assert job.wait() == ("FAILED", 78), job
    assert job.restarts == 0
    assert "missing.py" in job.text()
    assert job.text().count("fix: correct the path in TRAIN_SCRIPT") == 2  # each node says it
    assert "Traceback" not in job.text()
