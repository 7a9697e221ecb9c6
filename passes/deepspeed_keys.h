// DeepSpeed's documented keys that are about something else than what halfnote takes over: each is
// named in a note, or refused with the reason (docs/policy.md has the table).
#pragma once

#include <array>
#include <string_view>

namespace halfnote {

/// Keys whose value changes no number of a training in one process.
inline constexpr std::array kIdleDeepSpeedKeys = std::to_array<std::string_view>({
    "activation_checkpointing",  // the same numbers; here it is run --memory
    "aio",
    "checkpoint",
    "comet",
    "comms_logger",
    "communication_data_type",
    "csv_monitor",
    "disable_allgather",
    "dump_state",
    "flops_profiler",
    "fp32_allreduce",
    "memory_breakdown",
    "nebula",
    "seq_parallel_communication_data_type",
    "sparse_gradients",
    "steps_per_print",
    "tensorboard",
    "vocabulary_size",
    "wall_clock_breakdown",
    "wandb",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
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

}  // namespace halfnote
