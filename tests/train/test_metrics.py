import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
metrics = pytest.importorskip("metrics")
from options import Options  # noqa: E402
from trackers import numbers, open_trackers  # noqa: E402

OPTIONS = Options(steps=100, global_batch=4, seq_length=32)
TOKENS = 4 * 32  # of a step


def records(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_speeds_leave_out_what_is_not_training(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    told = metrics.Metrics(tmp_path, OPTIONS, speak=True)
    for step in range(1, 11):
        told.step_done(step, TOKENS)
        now[0] += 0.1
    with told.apart():
        now[0] += 1000
    told.log(10, 2.5, 1e-3)
    record = records(tmp_path)[0]
    assert (record["samples_per_second"], record["tokens_per_second"], record["eta_seconds"]) == (40, 1280, 9)


def test_padding_is_not_counted_as_tokens(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    told = metrics.Metrics(tmp_path, OPTIONS, speak=True)
    told.set_flops(1e9, 1e12)
    for step, tokens in ((1, 20), (2, 30), (3, 40)):
        told.step_done(step, tokens)
        now[0] += 0.5
        if step > 1:
            told.log(step, 2.5, 1e-3)
    first, second = records(tmp_path)
    assert (first["tokens_per_second"], first["samples_per_second"], first["mfu"]) == (50, 8, 0.05)
    assert (second["tokens_per_second"], second["samples_per_second"], second["mfu"]) == (80, 8, 0.08)


def test_a_loss_that_is_no_number_is_null_and_the_file_stays_json(tmp_path, capsys):
    told = metrics.Metrics(tmp_path, OPTIONS, speak=True)
    told.step_done(1, TOKENS)
    told.skipped(1)
    told.log(1, float("nan"), 1e-3)
    assert records(tmp_path)[0]["loss"] is None
    assert records(tmp_path)[0]["skipped_steps"] == 1
    assert "loss not finite" in capsys.readouterr().out


def test_a_full_volume_loses_figures_and_not_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRAIN_STEP_FILE", "/dev/full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    told = metrics.Metrics(tmp_path, OPTIONS, speak=True)
    for step in (1, 2):
        told.step_done(step, TOKENS)
        told.log(step, 2.0, 1e-3)
    output = capsys.readouterr().out
    assert output.count("No space left on device; training goes on") == 1
    assert output.count("loss 2.0000") == 2


def test_mfu_is_told_where_card_and_model_are_known(tmp_path, capsys):
    told = metrics.Metrics(tmp_path, OPTIONS, speak=True)
    told.set_flops(1e9, 1e15)
    told.step_done(1, TOKENS)
    time.sleep(0.01)
    told.log(1, 2.0, 1e-3)
    record = records(tmp_path)[0]
    assert record["mfu"] == pytest.approx(record["tokens_per_second"] * 1e9 / 1e15, abs=1e-4)
    assert "mfu" in capsys.readouterr().out


def test_other_ranks_write_and_say_nothing(tmp_path, capsys):
    told = metrics.Metrics(tmp_path, OPTIONS, speak=False)
    told.step_done(1, TOKENS)
    told.log(1, 2.0, 1e-3)
    told.log_validation(1, 2.0)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_tensorboard_gets_every_number(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = metrics.Metrics(tmp_path, OPTIONS, speak=True)
    for step in (1, 2):
        told.step_done(step, TOKENS)
        told.log(step, 3.0 - step, 1e-3)
    told.log_validation(2, 1.5)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("loss")] == [2.0, 1.0]
    assert {"lr", "tokens_per_second", "samples_per_second", "validation_loss"} <= set(events.Tags()["scalars"])


def test_only_numbers_become_curves():
    assert numbers({"step": 3, "loss": None, "lr": 1, "name": "x"}) == {"lr": 1.0}


def test_weights_and_biases_is_used_only_when_a_key_or_its_offline_mode_is_set(tmp_path):
    assert len(open_trackers(tmp_path, OPTIONS, {})) == 1


@pytest.mark.slow
def test_weights_and_biases_keeps_an_offline_run_in_the_runs_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trackers = open_trackers(tmp_path, OPTIONS, {"WANDB_MODE": "offline"})
    trackers[1](1, {"loss": 2.0})
    import wandb

    wandb.finish()
    assert list((tmp_path / "wandb").glob("offline-run-*"))


def warnings(output):
    return [line for line in output.splitlines() if line.startswith("warning: ")]


WRONG_KEY = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import metrics, options
told = metrics.Metrics(pathlib.Path.cwd(), options.Options(global_batch=4), speak=True)
told.step_done(1, 8)
told.log(1, 2.0, 1e-3)
"""


@pytest.mark.slow
def test_a_wrong_key_of_weights_and_biases_is_one_warning_and_the_rest_goes_on(tmp_path):
    """In a process of its own: wandb keeps the settings of its first run."""
    pytest.importorskip("wandb")
    environment = os.environ | {"WANDB_API_KEY": "abc", "WANDB_BASE_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", WRONG_KEY, Path(metrics.__file__).parent]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    (line,) = warnings(done.stdout)
    assert "Weights & Biases is left out: " in line
    assert "key" in line
    assert "metrics.jsonl" in line
    assert records(tmp_path)[0]["loss"] == 2.0
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize(("package", "name"), [("wandb", "Weights & Biases"), ("tensorboard", "TensorBoard")])
def test_a_package_that_is_not_installed_is_one_warning_and_the_rest_goes_on(
    tmp_path, monkeypatch, capsys, package, name
):
    for module in [module for module in sys.modules if module.startswith(("torch.utils.tensorboard", package))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # to Python: a package that is not there
    variables = {"WANDB_API_KEY": "0" * 40} if package == "wandb" else {}
    assert len(open_trackers(tmp_path, OPTIONS, variables)) == len(variables)
    (line,) = warnings(capsys.readouterr().out)
    assert f"{name} is left out" in line
    assert package in line
