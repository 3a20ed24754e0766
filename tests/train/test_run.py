"""What goes around a step, in one process."""

import dataclasses
import json

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
import process_group  # noqa: E402
import run as runs  # noqa: E402
from model import build_model  # noqa: E402
from options import Options  # noqa: E402


@pytest.fixture(scope="module")
def process():
    yield process_group.start({})
    process_group.stop()


@pytest.fixture
def run(tmp_path, monkeypatch, process):
    monkeypatch.setenv("TRAIN_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("TRAIN_CHECKPOINT_DIR", raising=False)
    (tmp_path / "text.txt").write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(4000)))
    options = Options(data=(str(tmp_path / "text.txt"),), seq_length=32, global_batch=6, micro_batch=3)
    return runs.Run("ddp", options, process)


def test_validation_takes_no_more_samples_at_once_than_training(run):
    model, taken = build_model(run.options, 256), []
    model.register_forward_pre_hook(lambda _, inputs: taken.append(len(inputs[0])))
    run.validate(1, model)
    assert max(taken) == 3
    assert sum(taken) == min(runs.VALIDATION_SAMPLES, len(run.samples.validation))


def test_conversations_that_do_not_fit_are_counted_aloud(run, capsys):
    train = run.samples.train
    starts = np.array([0, 33, 50, 84, 200])  # 33, 17, 34 and 116 tokens; a sample has 32 + 1
    train = dataclasses.replace(train, starts=starts, learn=np.ones(200, np.uint8))
    run.samples = dataclasses.replace(run.samples, train=train)
    run.describe(build_model(run.options, 256))
    assert "2 of 4 conversations are longer than --seq-length 32" in capsys.readouterr().out


def test_the_speed_is_that_of_the_tokens_of_conversations_without_padding(run):
    train = dataclasses.replace(run.samples.train, starts=np.arange(0, 1800, 18), learn=np.ones(1800, np.uint8))
    run.samples = dataclasses.replace(run.samples, train=train)
    run.batch(9)
    run.step_done(10, torch.zeros(()))
    record = json.loads((run.directory / "metrics.jsonl").read_text())
    assert record["tokens_per_second"] / record["samples_per_second"] == pytest.approx(17, rel=0.01)
