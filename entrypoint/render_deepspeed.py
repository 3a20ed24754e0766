"""The ready-made configurations of DeepSpeed (JSON for `--deepspeed-config`) and of Accelerate (YAML)."""

from typing import Any

from entrypoint.render_text import Why, to_json, to_yaml

GPUS_A_NODE = 8
NVME = "/nvme"  # a disk of the machine itself; a network volume would be slower than no offload

_SHARDED = {"overlap_comm": True}
_CPU = {"device": "cpu", "pin_memory": True}
_NVME = {"device": "nvme", "nvme_path": NVME, "pin_memory": True}

# Name → the section zero_optimization, and what stands beside it.
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stage-0": ({"stage": 0}, {}),
    "stage-1": ({"stage": 1, **_SHARDED}, {}),
    "stage-2": ({"stage": 2, **_SHARDED}, {}),
    "stage-3": ({"stage": 3, **_SHARDED}, {}),
    "stage-2-offload-cpu": ({"stage": 2, **_SHARDED, "offload_optimizer": _CPU}, {}),
    "stage-3-offload-cpu": ({"stage": 3, **_SHARDED, "offload_optimizer": _CPU, "offload_param": _CPU}, {}),
    "stage-3-offload-nvme": (
        {"stage": 3, **_SHARDED, "offload_optimizer": _NVME, "offload_param": _NVME},
        {"aio": {"block_size": 1048576, "queue_depth": 32, "intra_op_parallelism": 4, "overlap_events": True}},
    ),
    # ZeRO++: weights are sharded inside a node, so that they are gathered over NVLink and not over the network.
    "stage-3-hierarchical": ({"stage": 3, **_SHARDED, "zero_hpz_partition_size": GPUS_A_NODE}, {}),
}

_AUTO = "auto"


def for_zero(form: str) -> dict[str, Any]:
    """For our recipe `zero`, which fills in batch, clipping and precision, and has an optimizer of its own."""
    zero, beside = FORMS[form]
    return {"zero_optimization": zero, **beside}


def for_hugging_face(form: str) -> dict[str, Any]:
    """For the Trainer, which fills in what is "auto" from its own arguments."""
    zero, beside = FORMS[form]
    config: dict[str, Any] = {
        "train_batch_size": _AUTO,
        "train_micro_batch_size_per_gpu": _AUTO,
        "gradient_accumulation_steps": _AUTO,
        "gradient_clipping": _AUTO,
        "bf16": {"enabled": _AUTO},
        "zero_optimization": dict(zero),
        **beside,
    }
    if zero["stage"] == 3:
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    if "offload_optimizer" in zero:  # DeepSpeed then takes its Adam for CPUs; one of torch would not do
        names = ("lr", "betas", "eps", "weight_decay")
        config["optimizer"] = {"type": "AdamW", "params": dict.fromkeys(names, _AUTO)}
    return config


# ---- Accelerate ----

_FSDP = {
    "fsdp_version": 2,
    "fsdp_reshard_after_forward": True,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_activation_checkpointing": False,
    "fsdp_offload_params": False,
}


def _accelerate(kind: str, **more: Any) -> dict[str, Any]:
    cpu = kind == "MULTI_CPU"
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": "no" if cpu else "bf16",
        "gpu_ids": None if cpu or kind == "DEEPSPEED" else "all",
        "same_network": True,
        "rdzv_backend": "static",
        "use_cpu": cpu,
        **more,
    }


def accelerate_forms() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name → what it is, and the document."""
    zero = {
        f"zero-{stage}": (
            f"DeepSpeed, ZeRO stage {stage}",
            _accelerate(
                "DEEPSPEED",
                deepspeed_config={
                    "zero_stage": stage,
                    "offload_optimizer_device": "none",
                    "offload_param_device": "none" if stage == 3 else None,
                    "gradient_accumulation_steps": Why(1, "or what your script tells its Accelerator"),
                    "gradient_clipping": 1.0,
                    "zero3_init_flag": stage == 3,
                    "zero3_save_16bit_model": True if stage == 3 else None,
                },
            ),
        )
        for stage in range(4)
    }
    return {
        "ddp": ("Several GPUs, each with the whole model", _accelerate("MULTI_GPU")),
        "fsdp2": ("FSDP2: weights, gradients and optimizer sharded", _accelerate("FSDP", fsdp_config=_FSDP)),
        **zero,
        "cpu": (
            "CPUs, with gloo. `accelerate launch` starts one process a node on CPUs; torchrun starts several",
            _accelerate("MULTI_CPU"),
        ),
    }


def files() -> dict[str, str]:
    """Path under templates/ → text."""
    found = {f"deepspeed/zero-{form}.json": to_json(for_zero(form)) for form in FORMS}
    found |= {f"deepspeed/hf-{form}.json": to_json(for_hugging_face(form)) for form in FORMS}
    for name, (title, document) in accelerate_forms().items():
        head = f"{title}. Numbers of machines and processes come on the command line."
        found[f"accelerate/{name}.yaml"] = to_yaml(head, document)
    return found
