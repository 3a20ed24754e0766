"""What the recipe hf refuses, since the Trainer would do something else without a word."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from hf_arguments import deepspeed_config, refuse_impossible, stage_of  # noqa: E402
from options import HfOptions, Problem  # noqa: E402
from process_group import Process  # noqa: E402

TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "deepspeed"
PROCESS = Process(0, 0, 2, torch.device("cpu"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    return str(path)


@pytest.mark.parametrize("chosen", [{"zero_stage": 3}, {"deepspeed_config": "mine.json"}])
def test_what_is_for_zero_is_refused_with_ddp(chosen):
    with pytest.raises(Problem, match=r"--(zero-stage 3|deepspeed-config mine.json) with --strategy ddp"):
        refuse_impossible(HfOptions(**chosen), PROCESS)
    refuse_impossible(HfOptions(strategy="zero", **chosen), PROCESS)


@pytest.mark.parametrize(("asked", "stage"), [(None, 2), (0, 0), (3, 3)])
def test_the_stage_is_the_one_that_was_asked_for(asked, stage):
    assert stage_of(deepspeed_config(HfOptions(strategy="zero", zero_stage=asked), 2)) == stage


def test_a_stage_that_the_file_contradicts_is_refused(file):
    for stage in (None, 1):
        assert stage_of(deepspeed_config(HfOptions(strategy="zero", zero_stage=stage, deepspeed_config=file), 2)) == 1
    with pytest.raises(Problem, match=r"--zero-stage 3, but zero_optimization.stage is 1 in"):
        deepspeed_config(HfOptions(strategy="zero", zero_stage=3, deepspeed_config=file), 2)


AUTO_ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}


def config_of(tmp_path, stage, **sections):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": stage}, **sections}))
    return deepspeed_config(HfOptions(strategy="zero", deepspeed_config=str(path)), 2)


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": AUTO_ADAMW},
        {"optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8}}},
        {"optimizer": AUTO_ADAMW, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}},
    ],
)
def test_an_optimizer_and_a_scheduler_that_contradict_nothing_are_ours(tmp_path, stage, sections):
    assert not {"optimizer", "scheduler"} & config_of(tmp_path, stage, **sections).keys()


@pytest.mark.parametrize(
    ("sections", "quoted"),
    [
        ({"optimizer": {"type": "Lamb"}}, 'optimizer.type is "Lamb"'),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}, "optimizer.params.lr is 1e-05"),
        (
            {"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.999]}}},
            r"optimizer.params.betas is \[0.9, 0.999",
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}},
            "scheduler.params.warmup_num_steps is 9",
        ),
    ],
)
def test_an_optimizer_or_a_scheduler_that_asks_for_something_else_is_refused(tmp_path, sections, quoted):
    with pytest.raises(Problem, match=quoted):
        config_of(tmp_path, 2, **sections)


@pytest.mark.parametrize("file", sorted(TEMPLATES.glob("hf-*.json")), ids=lambda file: file.stem)
def test_our_own_files_are_taken_by_the_recipe(file):
    config = deepspeed_config(HfOptions(strategy="zero", deepspeed_config=str(file)), 8)
    assert config["zero_optimization"] == json.loads(file.read_text())["zero_optimization"]
    assert "optimizer" not in config
