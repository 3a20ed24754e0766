"""The configuration that DeepSpeed gets: made from our options, or the user's own file, which must agree with them.

Imports neither torch nor DeepSpeed.
"""

import json
from pathlib import Path
from typing import Any

from deepspeed_check import AUTO, ZERO_FILLS, check
from options import BETAS, Options, Problem, ZeroOptions

DEFAULT_STAGE = 2


def make_config(options: ZeroOptions, *, world_size: int, passes: int, bfloat16: bool) -> dict[str, Any]:
    """What deepspeed.initialize takes. Optimizer and learning rate are not in it: they are the same in all recipes.

    >>> config = make_config(ZeroOptions(global_batch=8), world_size=2, passes=2, bfloat16=False)
    >>> config["train_micro_batch_size_per_gpu"], config["zero_optimization"]
    (2, {'stage': 2})
    """
    assert options.global_batch is not None
    file = options.deepspeed_config
    config = read_config(file) if file else {"zero_optimization": {"stage": AUTO}}
    if file:
        check(config, file, fills=ZERO_FILLS, world_size=world_size)
    _settle_stage(config, options)
    sharded = stage_of(config) > 0
    for path, ours, option in (
        ("train_batch_size", options.global_batch, "--global-batch"),
        ("train_micro_batch_size_per_gpu", options.global_batch // passes // world_size, "--micro-batch"),
        ("gradient_accumulation_steps", passes, "--micro-batch"),
        ("gradient_clipping", options.clip, "--clip"),
        # Stage 0 keeps no fp32 weights beside bf16 ones, so there the fp32 weights stay, as in ddp.
        ("bf16.enabled", bfloat16 and sharded, "--precision"),
        ("torch_autocast.enabled", bfloat16 and not sharded, "--precision"),
        ("torch_autocast.dtype", "bfloat16", "--precision"),  # its own default is float16 on a GPU
        ("fp16.enabled", False, "--precision"),
    ):
        _agree(config, path, ours, option, file)
    if bfloat16 and sharded:  # a sum of many passes in bf16 loses the small ones
        config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")
    take_out_optimizer(config, options, file)
    return config


def stage_of(config: dict[str, Any]) -> int:
    return int(config["zero_optimization"]["stage"])


def offloads(config: dict[str, Any]) -> bool:
    """Whether the optimizer's state leaves the GPU, so that its step is made by the CPU."""
    return _device(config, "offload_optimizer") != "none"


def wanted_ops(config: dict[str, Any]) -> list[str]:
    """DeepSpeed's ops, by its names, without which this configuration does not start."""
    adam = offloads(config) and config.get("zero_force_ds_cpu_optimizer", True)
    on_disk = "nvme" in (_device(config, "offload_optimizer"), _device(config, "offload_param"))
    return ["cpu_adam"] * adam + ["async_io"] * on_disk


def _device(config: dict[str, Any], section: str) -> str:
    return str((config["zero_optimization"].get(section) or {}).get("device", "none"))


def read_config(file: str) -> dict[str, Any]:
    """A file of the user's own as far as it is an object of objects; Problem where it is none."""
    try:
        config = json.loads(Path(file).read_text())
    except OSError as error:
        raise Problem(f"{file}: {error.strerror}", fix="give a file that node 0 can read") from None
    except ValueError as error:
        raise Problem(f"{file}: no JSON: {error}", fix="correct it at that place") from None
    sections = ("zero_optimization", "optimizer", "scheduler", "bf16", "fp16", "data_types", "torch_autocast")
    if not isinstance(config, dict) or not all(isinstance(config.get(name, {}), dict) for name in sections):
        raise Problem(
            f"{file}: the file and {', '.join(sections)} in it must be objects",
            fix="see the configuration reference of DeepSpeed",
        )
    return config


def _settle_stage(config: dict[str, Any], options: ZeroOptions) -> None:
    zero = config.setdefault("zero_optimization", {})
    stage = zero.get("stage", 0)
    if stage == AUTO:
        stage = DEFAULT_STAGE if options.zero_stage is None else options.zero_stage
    if stage not in (0, 1, 2, 3):
        raise Problem(f"{options.deepspeed_config}: zero_optimization.stage is {stage!r}", fix="one of 0, 1, 2, 3")
    if options.zero_stage not in (None, stage):
        raise Problem(
            f"--zero-stage {options.zero_stage}, but zero_optimization.stage is {stage} in {options.deepspeed_config}",
            fix='leave --zero-stage out, or write "auto" in the file',
        )
    zero["stage"] = stage
    if options.offload and not offloads(config):
        zero["offload_optimizer"] = {"device": "cpu"}
    if offloads(config) and stage == 0:
        raise Problem("stage 0 cannot offload the optimizer", fix="--zero-stage 1, 2 or 3, or no offload")


def _agree(config: dict[str, Any], path: str, ours: Any, option: str, file: str | None) -> None:
    """Fill in what is absent or "auto"; refuse another value than ours."""
    *sections, name = path.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    given = config.get(name, AUTO)
    if given not in (AUTO, ours):
        raise Problem(
            f"{path} is {json.dumps(given)} in {file}, but this run has {json.dumps(ours)} ({option})",
            fix=f'another {option}, or write "auto" in the file',
        )
    config[name] = ours


def take_out_optimizer(config: dict[str, Any], options: Options, file: str | None) -> None:
    """Drop the sections `optimizer` and `scheduler`, unless they ask for something else than our own would do.

    DeepSpeed would make an optimizer of its own, which decays norms and biases too, and a schedule beside ours.
    """
    ours = {
        "lr": options.lr,
        "betas": list(BETAS),
        "eps": 1e-8,
        "weight_decay": options.weight_decay,
        "adam_w_mode": True,
        "torch_adam": True,
    }
    optimizer, scheduler = config.pop("optimizer", {}), config.pop("scheduler", {})
    asked = {
        **{f"optimizer.params.{name}": (v, ours.get(name, AUTO)) for name, v in _params(optimizer).items()},
        **{f"scheduler.params.{name}": (v, AUTO) for name, v in _params(scheduler).items()},
    }
    if str(optimizer.get("type", "AdamW")).lower() not in ("adam", "adamw"):
        asked["optimizer.type"] = (optimizer["type"], "AdamW")
    for path, (given, expected) in asked.items():
        if given not in (AUTO, expected):
            raise Problem(
                f"{path} is {json.dumps(given)} in {file}, but optimizer and learning rate are this run's own",
                fix='write "auto" there or leave it out; --lr, --weight-decay, --warmup and --schedule set them',
            )


def _params(section: dict[str, Any]) -> dict[str, Any]:
    return section.get("params") or {}
