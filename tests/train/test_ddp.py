"""`train ddp` as a user runs it: real processes, real text, a real launcher."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


def start(volume, *arguments, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": str(volume), "TRAIN_VOLUME": str(volume), **variables}
    command = [sys.executable, "-m", "entrypoint", "train", "ddp", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def train(volume, *arguments, code=0, **variables):
    process = start(volume, *arguments, **variables)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def losses(*runs):
    """step → loss of the records of a run; a step that was trained twice must have given the same loss."""
    found: dict[int, float] = {}
    for run in runs:
        for line in (run / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            assert found.setdefault(record["step"], record["loss"]) == record["loss"]
    return found


def assert_same_start(found, expected):
    """Twenty steps: sums in another order differ in their last bit, and training makes such a difference grow."""
    assert found.keys() == expected.keys()
    assert max(abs(found[step] - expected[step]) for step in range(1, 21)) < 1e-4


SMALL = ("--steps", "80", "--log-every", "1", "--seq-length", "64", "--global-batch", "6", "--warmup", "2")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(4000)))
    return str(path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, text):
    volume = tmp_path_factory.mktemp("undisturbed")
    train(volume, *SMALL, "--data", text)
    return losses(volume / "runs" / "ddp")


def test_the_model_beats_a_bigram_of_the_same_data(tmp_path):
    output = train(tmp_path, "--steps", "250")
    run = tmp_path / "runs" / "ddp"
    summary = json.loads((run / "summary.json").read_text())
    assert 2.0 < summary["bigram_loss"] < 3.0
    assert summary["validation_loss"] < summary["bigram_loss"] - 0.1
    assert "a sample:" in output
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"step", "loss", "lr", "tokens_per_second", "samples_per_second"} <= records[0].keys()
    assert [record["step"] for record in records] == list(range(10, 251, 10))
    plan = json.loads((run / "plan.json").read_text())
    assert plan["cluster"]["world_size"] == 2
    assert json.loads((run / "exit.json").read_text())["exit_code"] == 0
    assert (run / "checkpoints" / "step-250" / "manifest.json").exists()
    assert (run / "logs" / "attempt-0" / "n0r0.log").exists()


@pytest.mark.parametrize("processes", ["1", "3"])
def test_the_losses_do_not_depend_on_the_number_of_processes(tmp_path, text, undisturbed, processes):
    train(tmp_path, *SMALL, "--data", text, TRAIN_NPROC=processes)
    assert_same_start(losses(tmp_path / "runs" / "ddp"), undisturbed)


def test_accumulation_changes_nothing(tmp_path, text, undisturbed):
    train(tmp_path, *SMALL, "--data", text, "--micro-batch", "1")
    assert_same_start(losses(tmp_path / "runs" / "ddp"), undisturbed)


def stop_by_signal(process, run):
    process.send_signal(signal.SIGTERM)


def stop_by_file(process, run):
    (run / "stop").touch()


def stop_by_signal_to_one_rank(process, run):
    """l-09: nobody but rank 1 knows; the others must not wait for it in the next step."""
    keeper = json.loads((run / "logs" / "attempt-0" / "n0r1.started.json").read_text())
    os.kill(keeper["script"], signal.SIGTERM)


@pytest.mark.parametrize("stop", [stop_by_signal, stop_by_file, stop_by_signal_to_one_rank])
def test_a_stopped_run_goes_on_where_it_was_with_the_same_losses(tmp_path, text, undisturbed, stop):
    run = tmp_path / "runs" / "ddp"
    process = start(tmp_path, *SMALL, "--data", text, TRAIN_NPROC="2")
    wait_for_step(run, 20)
    stop(process, run)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert "stopped on request" in output
    assert json.loads((run / "exit.json").read_text())["exit_code"] == 143
    output = train(tmp_path, *SMALL, "--data", text)
    assert "going on from" in output
    assert losses(run) == undisturbed


def test_a_killed_run_goes_on_from_its_newest_checkpoint(tmp_path, text, undisturbed):
    run = tmp_path / "runs" / "ddp"
    process = start(tmp_path, *SMALL, "--data", text, "--save-every", "10")
    wait_for_step(run, 25)
    process.kill()
    wait_until_gone(run)
    process.communicate()
    assert not (run / "summary.json").exists(), "the training went on to its end"
    output = train(tmp_path, *SMALL, "--data", text, "--save-every", "10")
    assert "going on from" in output
    assert losses(run) == undisturbed
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-70", "step-80"]


def test_a_finished_run_is_not_trained_again(tmp_path, text):
    train(tmp_path, *SMALL, "--data", text)
    records = (tmp_path / "runs" / "ddp" / "metrics.jsonl").read_text()
    output = train(tmp_path, *SMALL, "--data", text)
    assert "ddp has finished" in output
    assert (tmp_path / "runs" / "ddp" / "metrics.jsonl").read_text() == records


@pytest.mark.parametrize(("changed", "named"), [(("--seed", "1"), "seed"), (("--seq-length", "32"), "seq_length")])
def test_another_run_under_the_same_name_is_refused(tmp_path, text, changed, named):
    train(tmp_path, *SMALL, "--data", text)
    output = train(tmp_path, *SMALL, "--data", text, *changed, code=78)
    assert f"{named} is" in output
    assert "TRAIN_RUN" in output
    assert "Traceback" not in output


def test_a_wrong_path_is_one_line_and_a_fix(tmp_path):
    output = train(tmp_path, "--data", "/no/such/text", code=78)
    assert "error: --data /no/such/text: no such file, folder or match" in output
    assert "fix:" in output
    assert "Traceback" not in output


def test_a_wrong_option_starts_nothing(tmp_path):
    output = train(tmp_path, "--global-batch", "7", code=78, TRAIN_NPROC="2")
    assert "--global-batch 7 is not a multiple of the 2 processes" in output
    assert not (tmp_path / "runs").exists()


def wait_for_step(run, step):
    deadline = time.monotonic() + 120
    while not (run / "step").exists() or int((run / "step").read_text() or 0) < step:
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.05)


def wait_until_gone(run):
    """The processes of a killed launcher die with it; nothing else of the run may be left."""
    deadline = time.monotonic() + 5
    while any(str(run) in environment_of(pid) for pid in os.listdir("/proc") if pid.isdigit()):
        assert time.monotonic() < deadline, "a process outlived its launcher"
        time.sleep(0.1)


def environment_of(pid):
    try:
        return Path("/proc", pid, "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
