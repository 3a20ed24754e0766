"""The names that DeepSpeed 0.19.8 reads in its configuration; a test compares them with the library itself."""

from typing import Any

ANY = "any"  # a section whose names DeepSpeed's own models look at, or that are not fixed


def names(text: str) -> dict[str, Any]:
    """Plain names, as keys of a table that has sections too."""
    return dict.fromkeys(text.split())


_ADAM = names(
    "lr betas eps weight_decay bias_correction amsgrad torch_adam adam_w_mode fp32_optimizer_states max_grad_norm"
)
_SCHEDULES = names(
    """
    warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration total_num_steps warmup_min_ratio
    cos_min_ratio lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase
    cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size cycle_first_stair_count
    cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom cycle_max_mom decay_mom_rate
    """
)
_OFFLOAD_PARAM = names("device nvme_path buffer_count buffer_size max_in_cpu pin_memory")
_OFFLOAD_OPTIMIZER = names(
    """
    device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio super_offload
    cpuadam_cores_perc
    """
)
_ZENFLOW = names(
    """
    topk_ratio select_strategy select_interval update_interval overlap_step offload auto_ratio full_warm_up_rounds
    pt_reserved_cores_perc steps_per_epoch
    """
)
_ZERO = names(
    """
    stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions
    allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights elastic_checkpoint sub_group_size
    stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_model_persistence_threshold
    stage3_max_live_parameters stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save
    stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential
    ignore_unused_parameters legacy_stage1 round_robin_gradients parameter_alignment zero_hpz_partition_size
    zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear
    pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks
    save_muon_momentum_buffer_in_memory
    """
)

KEYS: dict[str, Any] = {
    **names(
        """
        train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
        managed_gradient_accumulation prescale_gradients gradient_predivide_factor gradient_allreduce_op
        communication_data_type seq_parallel_communication_data_type disable_allgather disable_python_gc dump_state
        log_level memory_breakdown steps_per_print wall_clock_breakdown zero_allow_untested_optimizer
        zero_force_ds_cpu_optimizer dataloader_drop_last use_data_before_expert_parallelism vocabulary_size
        """
    ),
    "zero_optimization": {
        **_ZERO,
        "offload_param": _OFFLOAD_PARAM,
        "offload_optimizer": _OFFLOAD_OPTIMIZER,
        "zenflow": _ZENFLOW,
        "leaf_module": names("classes names name_suffixes"),
    },
    "bf16": names(
        "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"
    ),
    "fp16": names(
        """
        enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis
        min_loss_scale fp16_master_weights_and_grads
        """
    ),
    "torch_autocast": names("enabled dtype lower_precision_safe_modules"),
    "data_types": names("grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules"),
    "optimizer": {**names("type legacy_fusion"), "params": _ADAM},
    "scheduler": {**names("type"), "params": _SCHEDULES},
    "aio": names("block_size queue_depth intra_op_parallelism single_submit overlap_events use_gds"),
    "checkpoint": ANY,
    "flops_profiler": names("enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file"),
    **dict.fromkeys(names("comms_logger compile timers tensorboard wandb comet csv_monitor"), ANY),
    **dict.fromkeys(names("tensor_parallel expert_parallel weight_quantization datastates_ckpt"), ANY),
    **dict.fromkeys(names("activation_checkpointing autotuning data_efficiency hybrid_engine pipeline"), ANY),
}

# Sections that do nothing in a script that does not ask DeepSpeed for them, which none of our recipes does.
WITHOUT_EFFECT = {
    "activation_checkpointing": "it is for deepspeed.checkpointing; --activation-checkpointing is for torch's",
    "autotuning": "only the command `deepspeed --autotuning` reads it",
    "data_efficiency": "it is for DeepSpeed's data loader, and the samples are this run's own",
    "dataloader_drop_last": "it is for DeepSpeed's data loader, and the samples are this run's own",
    "hybrid_engine": "it is for generation between steps",
    "pipeline": "it is for pipeline modules",
}

# Old name → what to write. DeepSpeed 0.19.8 still takes these, and warns.
DEPRECATED = {
    "bfloat16": "bf16",
    "zero_optimization.cpu_offload": 'zero_optimization.offload_optimizer with {"device": "cpu"}',
    "zero_optimization.cpu_offload_param": 'zero_optimization.offload_param with {"device": "cpu"}',
    "zero_optimization.cpu_offload_params": 'zero_optimization.offload_param with {"device": "cpu"}',
    "zero_optimization.cpu_offload_use_pin_memory": "pin_memory in offload_optimizer or offload_param",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}

REMOVED = frozenset(
    names(
        """
        amp compression_training curriculum_learning eigenvalue elasticity graph_harvesting nebula
        progressive_layer_drop quantize_training sparse_attention sparse_gradients zero_optimization.mics_shard_size
        zero_optimization.mics_hierarchical_params_gather zero_optimization.zeropp_loco_param
        """
    )
)

STAGE_3_ONLY = frozenset(
    name for name in KEYS["zero_optimization"] if name.startswith(("stage3_", "zero_quantized_"))
) | {"offload_param", "sub_group_size", "zero_hpz_partition_size", "leaf_module", "memory_efficient_linear"}
