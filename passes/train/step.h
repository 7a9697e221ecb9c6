// What the train passes agree on: the names of the steps, of their states, and of the gradients.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "compiler/ir/model.h"

namespace halfnote {

inline constexpr std::string_view kStepName = "step";  // the whole step in one graph
inline constexpr std::string_view kAccumulateName =
    "accumulate";                                              // one micro-batch, gradients summed
inline constexpr std::string_view kApplyName = "apply";        // the update from the sums
inline constexpr std::string_view kEvaluateName = "evaluate";  // loss and outputs in inference form

inline constexpr std::string_view kLossScale = "loss_scale";
inline constexpr std::string_view kAttemptedStep =
    "attempted_step";                                             // forward-backward passes begun
inline constexpr std::string_view kAppliedStep = "applied_step";  // updates made
inline constexpr std::string_view kSeed = "random_seed";
inline constexpr std::string_view kFinite = "finite";               // output: the update was made
inline constexpr std::string_view kGradientNorm = "grad_norm";      // output: before clipping
inline constexpr std::string_view kLearningRate = "learning_rate";  // output: of this update
inline constexpr std::string_view kGradientPrefix = "grad/";
inline constexpr std::string_view kSumPrefix = "sum/";          // accumulated gradients
inline constexpr std::string_view kPendingPrefix = "pending/";  // uncommitted statistics
inline constexpr std::string_view kScalerPrefix = "loss_scale.";
inline constexpr std::string_view kFloorHits = "loss_scale.floor_hits";  // overflows at its minimum

/// Is this a name that the train passes give in a step, and find again by?
inline bool is_reserved(std::string_view name) {
  for (std::string_view own :
       {kLossScale, kAttemptedStep, kAppliedStep, kSeed, kFinite, kGradientNorm, kLearningRate}) {
    if (name == own) return true;
  }
  for (std::string_view prefix : {kGradientPrefix, kSumPrefix, kPendingPrefix, kScalerPrefix}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

/// Does a step of the artifact check its gradients?
inline bool checks_gradients(const Model& model) {
  return std::ranges::any_of(model.training, [](const TrainingStep& step) {
    return std::ranges::any_of(step.graph.outputs(), [&](ValueId output) {
      return step.graph.value(output).name == kFinite;
    });
  });
}

/// The step with this name; null if the model has none.
inline TrainingStep* find_step(Model& model, std::string_view name) {
  for (TrainingStep& step : model.training) {
    if (step.name == name) return &step;
  }
  return nullptr;
}

/// The state whose current value is the initializer of this name; nothing if there is none.
inline std::optional<uint32_t> find_state(const Graph& graph, std::string_view name) {
  const ValueId value = graph.find(name);
  return value.valid() ? graph.state_of(value) : std::nullopt;
}

/// The loss of a step is always its first output.
inline ValueId loss_of(const Graph& graph) { return graph.outputs().front(); }

}  // namespace halfnote
