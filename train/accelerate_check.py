"""What Accelerate 1.15 takes without a word: its loader refuses unknown names at the top, and passes all below.

The names are compared with the library's own by a test. Imports neither torch nor accelerate.
"""

from collections.abc import Iterator
from typing import Any

from deepspeed_check import refuse_unknown
from deepspeed_keys import ANY, names
from options import Problem

_COUNTS = ("num_processes", "num_machines", "machine_rank", "main_process_port")
KEYS: dict[str, Any] = {
    **names(
        """
        compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines
        gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity
        downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env
        """
    ),
    "deepspeed_config": names(
        """
        deepspeed_config_file zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path
        offload_param_nvme_path gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model
        deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher
        deepspeed_moe_layer_cls_names
        """
    ),
    "fsdp_config": names(
        """
        fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy fsdp_reshard_after_forward
        fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_state_dict_type
        fsdp_forward_prefetch fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_sync_module_states
        fsdp_activation_checkpointing fsdp_activation_checkpointing_offload
        """
    ),
    **dict.fromkeys(names("fp8_config parallelism_config megatron_lm_config mpirun_config dynamo_config"), ANY),
}
_FSDP1_ONLY = (
    "fsdp_sharding_strategy",
    "fsdp_backward_prefetch",
    "fsdp_forward_prefetch",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
)


def check_accelerate(document: dict[str, Any], file: str) -> None:
    """Problem for the first thing in `document` that Accelerate would ignore, or fail on after the start."""
    refuse_unknown(document, KEYS, "", file, reader="Accelerate")
    for name in _COUNTS:
        value = document.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Problem(f"{name} is {value!r} in {file}", fix="a whole number, or leave it out")
    for name, why in _without_effect(document):
        raise Problem(f"{name} in {file} has no effect: {why}", fix="leave it out")


def _without_effect(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    kind = document.get("distributed_type")
    for section, wanted in (("deepspeed_config", "DEEPSPEED"), ("fsdp_config", "FSDP")):
        if document.get(section) and kind != wanted:
            yield section, f"distributed_type is {kind}, not {wanted}"
    zero, fsdp = document.get("deepspeed_config") or {}, document.get("fsdp_config") or {}
    if "deepspeed_config_file" not in zero and zero.get("zero_stage", 2) != 3:
        why = f"it is for stage 3, and this is stage {zero.get('zero_stage', 2)}"
        for name in ("offload_param_device", "zero3_init_flag", "zero3_save_16bit_model"):
            if zero.get(name) not in (None, False, "none"):
                yield f"deepspeed_config.{name}", why
    for which in ("optimizer", "param"):
        if f"offload_{which}_nvme_path" in zero and zero.get(f"offload_{which}_device") != "nvme":
            yield f"deepspeed_config.offload_{which}_nvme_path", f"offload_{which}_device is not nvme"
    if fsdp.get("fsdp_version") == 2:
        yield from ((f"fsdp_config.{name}", "FSDP2 has no such choice") for name in _FSDP1_ONLY if name in fsdp)
