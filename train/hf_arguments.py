"""How the recipe hf sets the Trainer up: its arguments, DeepSpeed's and FSDP's configuration, and what is refused."""

from typing import Any

from deepspeed_check import HF_FILLS, check
from deepspeed_config import DEFAULT_STAGE, read_config, take_out_optimizer
from options import BETAS, HfOptions, Problem
from process_group import Process
from run import Run
from transformers import TrainingArguments


def arguments(run: Run, options: HfOptions, config: dict[str, Any] | None) -> TrainingArguments:
    """What the Trainer needs to know; what the run does itself is switched off."""
    assert options.global_batch is not None
    # Where the weights are fp32, autocast is ours; stages 1 to 3 and FSDP keep fp32 weights beside bf16 ones.
    own_bfloat16 = options.strategy == "fsdp" or stage_of(config) > 0
    return TrainingArguments(
        output_dir=str(run.directory),
        max_steps=options.steps,
        per_device_train_batch_size=options.global_batch // (run.passes * run.process.world_size),
        gradient_accumulation_steps=run.passes,
        learning_rate=options.lr,
        weight_decay=options.weight_decay,
        adam_beta2=BETAS[1],
        lr_scheduler_type="constant",
        max_grad_norm=options.clip,
        seed=options.seed,
        bf16=run.bfloat16 and own_bfloat16,
        use_cpu=run.process.device.type == "cpu",
        torch_compile=options.compile,
        deepspeed=config,
        fsdp=True if options.strategy == "fsdp" else None,
        fsdp_config=fsdp_config(options) if options.strategy == "fsdp" else None,
        ddp_find_unused_parameters=options.find_unused_parameters,
        ignore_data_skip=True,
        logging_nan_inf_filter=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )


def fsdp_config(options: HfOptions) -> dict[str, Any]:
    """FSDP2; the blocks of a model of Hugging Face are known to transformers, ours are named here."""
    blocks = {} if options.model else {"transformer_layer_cls_to_wrap": ["Block"]}
    return {"version": 2, "state_dict_type": "SHARDED_STATE_DICT", **blocks}


def deepspeed_config(options: HfOptions, world_size: int) -> dict[str, Any] | None:
    """DeepSpeed's configuration for --strategy zero, in which the Trainer fills in what is "auto".

    Optimizer and learning rate are not in it: they are the same in all recipes.
    """
    if options.strategy != "zero":
        return None
    stage = DEFAULT_STAGE if options.zero_stage is None else options.zero_stage
    config: dict[str, Any] = {"zero_optimization": {"stage": stage}}
    if options.deepspeed_config:
        config = read_config(options.deepspeed_config)
        if config.get("zero_optimization", {}).get("stage") not in (0, 1, 2, 3):
            raise Problem(
                f"--deepspeed-config {options.deepspeed_config}: zero_optimization.stage is missing, or not 0 to 3",
                fix="write the stage into the file",
            )
        if options.zero_stage not in (None, stage_of(config)):
            raise Problem(
                f"--zero-stage {options.zero_stage}, but zero_optimization.stage is {stage_of(config)} "
                f"in {options.deepspeed_config}",
                fix="leave one of them out",
            )
        check(config, options.deepspeed_config, fills=HF_FILLS, world_size=world_size)
        take_out_optimizer(config, options, options.deepspeed_config)
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        config.setdefault(name, "auto")
    config.setdefault("gradient_clipping", "auto")
    config.setdefault("bf16", {"enabled": "auto"})
    if config["zero_optimization"]["stage"] == 3:
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return config


def stage_of(config: dict[str, Any] | None) -> int:
    return int(config["zero_optimization"]["stage"]) if config else 0


def form(options: HfOptions, process: Process, config: dict[str, Any] | None) -> str:
    """Of its checkpoints. DeepSpeed's own can be read only by the same stage over as many processes."""
    if config is None:
        return f"Trainer, {options.strategy}"
    over = f" over {process.world_size} processes" if stage_of(config) else ""
    return f"Trainer, ZeRO stage {stage_of(config)}{over}"


def refuse_impossible(options: HfOptions, process: Process) -> None:
    """What the Trainer would answer by training something else, unsaid."""
    if options.strategy == "fsdp" and (process.device.type == "cpu" or process.world_size == 1):
        where = "on a CPU" if process.device.type == "cpu" else "in one process"
        raise Problem(
            f"--strategy fsdp {where}: accelerate would train without it",
            fix="--strategy ddp or zero, or the recipe fsdp, which does run on CPUs",
        )
    if options.find_unused_parameters and options.strategy != "ddp":
        raise Problem(
            f"--find-unused-parameters with --strategy {options.strategy}: only DDP waits for every weight",
            fix="leave it out",
        )
    for name in ("deepspeed_config", "zero_stage"):
        value = getattr(options, name)
        if value is not None and options.strategy != "zero":
            option = f"--{name.replace('_', '-')}"
            raise Problem(f"{option} {value} with --strategy {options.strategy}", fix="--strategy zero")


def refused_config(error: ValueError, options: HfOptions) -> Exception:
    """A Problem where transformers refuses the user's DeepSpeed file; else the error as it is."""
    text = " ".join(str(error).split())
    if options.deepspeed_config and "DeepSpeed config" in text:
        return Problem(f"--deepspeed-config {options.deepspeed_config}: {text}", fix='write "auto" for these values')
    return error
