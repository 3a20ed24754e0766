"""What the recipe hf refuses, since the Trainer would do something else without a word."""

import json

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from hf_arguments import deepspeed_config, refuse_impossible, stage_of  # noqa: E402
from options import HfOptions, Problem  # noqa: E402
from process_group import Process  # noqa: E402

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
