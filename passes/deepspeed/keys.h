// DeepSpeed's documented keys that are about something else than what halfnote takes over: each is
// named in a note, or refused with the reason (docs/policy.md has the table).
#pragma once

#include <array>
#include <string_view>

namespace halfnote {

/// Keys whose value changes no number of a training in one process.
inline constexpr std::array kIdleDeepSpeedKeys = std::to_array<std::string_view>({
    "communication_data_type",
    "disable_allgather",
    "dump_state",
    "fp32_allreduce",
    "memory_breakdown",
    "seq_parallel_communication_data_type",
    "sparse_gradients",
    "steps_per_print",
    "vocabulary_size",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
});

/// The same for sections.
inline constexpr std::array kIdleDeepSpeedSections = std::to_array<std::string_view>({
    "activation_checkpointing",  // the same numbers; here it is run --memory
    "aio",
    "checkpoint",
    "comet",
    "comms_logger",
    "csv_monitor",
    "flops_profiler",
    "nebula",
    "tensorboard",
    "wandb",
});

/// Keys of zero_optimization that change no number: how shards are made, moved and gathered.
inline constexpr std::array kIdleZeroKeys = std::to_array<std::string_view>({
    "allgather_bucket_size",
    "allgather_partitions",
    "allgather_sequential",
    "contiguous_gradients",
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "elastic_checkpoint",
    "enable_sanity_checks",
    "gather_16bit_weights_on_model_save",
    "ignore_unused_parameters",
    "leaf_module",
    "legacy_stage1",
    "load_from_fp32_weights",
    "log_trace_cache_warnings",
    "max_live_parameters",
    "max_reuse_distance",
    "memory_efficient_linear",
    "mics_hierarchical_params_gather",
    "mics_shard_size",
    "model_persistence_threshold",
    "module_granularity_threshold",
    "offload_optimizer",
    "offload_param",
    "overlap_comm",
    "override_module_apply",
    "param_persistence_threshold",
    "partition_stream_chunk_size",
    "pipeline_loading_checkpoint",
    "prefetch_bucket_size",
    "reduce_bucket_size",
    "reduce_scatter",
    "round_robin_gradients",
    "save_muon_momentum_buffer_in_memory",
    "stage3_allgather_sequential",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold",
    "stage3_param_persistence_threshold",
    "stage3_partition_stream_chunk_size",
    "stage3_prefetch_bucket_size",
    "stage3_use_all_reduce_for_fetch_params",
    "sub_group_size",
    "use_all_reduce_for_fetch_params",
    "use_multi_rank_bucket_allreduce",
    "zero_hpz_partition_size",
});

struct RefusedDeepSpeedKey {
  std::string_view key, why;
};

/// Keys that train otherwise, unless they are off: false, null, an empty object, or one whose
/// "enabled" is false or left out.
inline constexpr std::array kRefusedDeepSpeedKeys = std::to_array<RefusedDeepSpeedKey>({
    {"amp", "take fp16 instead, and Apex's lists by --like apex-O1"},
    {"autotuning", "nothing is tried out here: write the batch sizes"},
    {"compression_training", "the model is trained as it is"},
    {"curriculum_learning", "samples are taken in the order of --seed"},
    {"data_efficiency", "samples are taken in the order of --seed"},
    {"eigenvalue", "the model is trained as it is"},
    {"elasticity", "there is one process: write the batch sizes"},
    {"hybrid_engine", "there is one process, which trains"},
    {"progressive_layer_drop", "layers are not left out"},
    {"quantize_training", "the model is trained as it is"},
    {"sparse_attention", "attention is computed as the model has it"},
    {"tensor_parallel", "there is one process"},
    {"torch_autocast", "name the type by bf16 or fp16, and take PyTorch's lists by --like pytorch"},
});

/// The same of zero_optimization.
inline constexpr std::array kRefusedZeroKeys = std::to_array<RefusedDeepSpeedKey>({
    {"zenflow", "all parameters are updated in each step"},
    {"zero_quantized_gradients", "gradients are not quantized"},
    {"zero_quantized_nontrainable_weights", "weights are not quantized"},
    {"zero_quantized_weights", "weights are not quantized"},
    {"zeropp_loco_param", "gradients are not quantized"},
});

}  // namespace halfnote
