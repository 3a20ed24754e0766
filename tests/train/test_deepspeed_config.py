"""DeepSpeed's configuration comes from our options; a file of the user's own must agree with them."""

import json

import pytest
from deepspeed_config import make_config, offloads, wanted_ops
from options import Problem, ZeroOptions


def config_of(tmp_path, content, *, bfloat16=False, **chosen):
    file = None
    if content is not None:
        file = tmp_path / "mine.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    options = ZeroOptions(global_batch=12, deepspeed_config=str(file) if file else None, **chosen)
    return make_config(options, world_size=2, passes=3, bfloat16=bfloat16)


def at(config, path):
    for name in path.split("."):
        config = config[name]
    return config


@pytest.mark.parametrize(
    ("content", "chosen", "path", "value"),
    [
        (None, {}, "zero_optimization.stage", 2),
        (None, {"zero_stage": 0}, "zero_optimization.stage", 0),
        (None, {}, "train_batch_size", 12),
        (None, {}, "train_micro_batch_size_per_gpu", 2),
        (None, {}, "gradient_accumulation_steps", 3),
        (None, {"clip": 0.5}, "gradient_clipping", 0.5),
        (None, {}, "bf16.enabled", False),
        (None, {"bfloat16": True}, "bf16.enabled", True),
        (None, {"bfloat16": True}, "data_types.grad_accum_dtype", "fp32"),
        (None, {"bfloat16": True, "zero_stage": 0}, "bf16.enabled", False),
        (None, {"bfloat16": True, "zero_stage": 0}, "torch_autocast.enabled", True),
        (None, {"offload": True}, "zero_optimization.offload_optimizer.device", "cpu"),
        ({}, {}, "zero_optimization.stage", 0),
        ({"zero_optimization": {"stage": 3}}, {}, "zero_optimization.stage", 3),
        ({"zero_optimization": {"stage": 3}}, {"zero_stage": 3}, "zero_optimization.stage", 3),
        ({"zero_optimization": {"stage": "auto"}}, {"zero_stage": 1}, "zero_optimization.stage", 1),
        ({"zero_optimization": {"stage": "auto"}}, {}, "zero_optimization.stage", 2),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 7}}, {}, "zero_optimization.reduce_bucket_size", 7),
        ({"train_batch_size": 12, "gradient_accumulation_steps": "auto"}, {}, "gradient_accumulation_steps", 3),
        ({"gradient_clipping": "auto"}, {"clip": 0.0}, "gradient_clipping", 0.0),
    ],
)
def test_what_the_file_leaves_open_is_filled_from_our_options(tmp_path, content, chosen, path, value):
    assert at(config_of(tmp_path, content, **chosen), path) == value


@pytest.mark.parametrize(
    ("content", "chosen", "quoted"),
    [
        ('{"zero_optimization": {"stage": 2},}', {}, "line 1 column"),
        ("[]", {}, "must be objects"),
        ({"zero_optimization": 2}, {}, "must be objects"),
        ({"zero_optimization": {"stage": 4}}, {}, "stage is 4"),
        ({"zero_optimization": {"stage": 3}}, {"zero_stage": 2}, "--zero-stage 2, but zero_optimization.stage is 3"),
        ({"train_batch_size": 32}, {}, "train_batch_size is 32"),
        ({"train_micro_batch_size_per_gpu": 4}, {}, "train_micro_batch_size_per_gpu is 4"),
        ({"gradient_accumulation_steps": 1}, {}, "this run has 3 (--micro-batch)"),
        ({"gradient_clipping": 0.5}, {}, "gradient_clipping is 0.5"),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, {}, "bf16.enabled is true"),
        ({"fp16": {"enabled": True}}, {}, "fp16.enabled is true"),
        ({"optimizer": {"type": "Lamb"}}, {}, 'optimizer.type is "Lamb"'),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}, {}, "optimizer.params.lr is 1e-05"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}}, {}, "warmup_num_steps is 9"),
        (None, {"zero_stage": 0, "offload": True}, "stage 0 cannot offload"),
    ],
)
def test_a_file_that_contradicts_the_options_is_refused(tmp_path, content, chosen, quoted):
    with pytest.raises(Problem) as caught:
        config_of(tmp_path, content, **chosen)
    assert quoted in caught.value.problem
    assert "\n" not in caught.value.problem
    assert caught.value.fix


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(Problem, match="/no/such/file: No such file"):
        make_config(
            ZeroOptions(global_batch=2, deepspeed_config="/no/such/file"), world_size=2, passes=1, bfloat16=False
        )


def test_an_optimizer_and_a_scheduler_that_leave_all_open_are_ours(tmp_path):
    optimizer = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": 0.1}}
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}
    config = config_of(tmp_path, {"optimizer": optimizer, "scheduler": scheduler})
    assert not {"optimizer", "scheduler"} & config.keys()


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({}, False),
        ({"offload_optimizer": {"device": "none"}}, False),
        ({"offload_optimizer": {"device": "cpu"}}, True),
        ({"offload_optimizer": None}, False),
    ],
)
def test_offload_is_what_the_file_says(zero, expected):
    assert offloads({"zero_optimization": zero}) == expected


NVME = {"device": "nvme", "nvme_path": "/nvme"}


@pytest.mark.parametrize(
    ("config", "ops"),
    [
        ({}, []),
        ({"offload_optimizer": {"device": "cpu"}}, ["cpu_adam"]),
        ({"offload_param": {"device": "cpu"}}, []),
        ({"offload_optimizer": NVME}, ["cpu_adam", "async_io"]),
        ({"offload_param": NVME}, ["async_io"]),
        ({"offload_optimizer": {"device": "cpu"}, "offload_param": NVME}, ["cpu_adam", "async_io"]),
    ],
)
def test_each_offload_wants_its_ops(config, ops):
    assert wanted_ops({"zero_optimization": config}) == ops


def test_an_optimizer_of_torch_that_is_forced_wants_no_op():
    offload = {"offload_optimizer": {"device": "cpu"}}
    assert wanted_ops({"zero_optimization": offload, "zero_force_ds_cpu_optimizer": False}) == []
