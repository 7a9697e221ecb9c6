// What the user asks of a compilation: plain data, filled from the policy file and the command
// line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "compiler/ir/limits.h"

namespace halfnote {

/// The rule by which the loss scale moves (docs/loss-scaling.md). Field names are those of the op
/// UpdateLossScale.
struct LossScaler {
  std::string preset = "halfnote";
  bool dynamic = true;  // false: `init` for ever, overflowing steps are still skipped
  float init = 65536.0f;
  float up = 2.0f;
  float down = 0.5f;
  int64_t interval = 2000;
  int64_t warmup_interval = 100;  // until the first overflow; 0: none
  int64_t hysteresis = 1;
  std::string refill = "on_growth";  // or every_clean
  int64_t first_window_extra = 0;
  int64_t publish_delay = 0;
  float min = 1.0f;
  float max = 16777216.0f;
  /// What `run` does at an overflow when the scale is at `min` already: `hold` goes on, `raise`
  /// stops, `diagnose` stops and names the node that makes the first Inf or NaN.
  std::string on_floor = "diagnose";
  friend bool operator==(const LossScaler&, const LossScaler&) = default;
};

/// The precision rules. Lists name op types (`Softmax`, `ai.halfnote.Dropout`) or match node names;
/// node rules win over op rules, and a node or op in both lists is an error.
struct Policy {
  DType dtype = DType::kF32;  // f32, f16 or bf16
  std::vector<std::string> allow_ops, fp32_ops;
  std::vector<std::string> allow_nodes, fp32_nodes;  // RE2, full match
  bool cost_refinement = true;
  bool pad = true;
  LossScaler scaler;
};

/// A rule for the parameters whose names match.
struct ParameterGroup {
  std::string pattern;  // RE2, full match on the initializer's name
  std::optional<float> weight_decay;
  std::optional<float> lr_factor;
};

struct Schedule {
  std::string kind = "constant";  // constant, linear, cosine, step
  int64_t warmup = 0;             // applied steps of linear warm-up from 0
  int64_t total = 0;              // applied steps until the end of linear or cosine
  float final_factor = 0.0f;      // of lr at the end
  int64_t step_size = 0;          // of step: every so many applied steps …
  float gamma = 0.1f;             // … lr is multiplied by this
};

struct Optimizer {
  std::string kind = "adamw";  // sgd, momentum, nesterov, adam, adamw
  float lr = 1e-3f;
  float momentum = 0.9f;
  float dampening = 0.0f;
  float beta1 = 0.9f, beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  float clip_norm = 0.0f;              // global L2 norm; 0: no clipping
  std::vector<ParameterGroup> groups;  // the first that matches holds
  bool no_decay_on_1d = false;         // norms and biases
  Schedule schedule;
};

struct TrainOptions {
  std::string loss;         // cross_entropy, nll, mse: attached to a graph without a loss
  std::string loss_output;  // name of the output that is the loss, for a graph that has one
  std::string loss_input;   // the value the attached loss reads; default: the first output
  std::vector<std::string>
      trainable;                    // RE2 on initializer names; empty: all that look like weights
  std::vector<std::string> frozen;  // RE2, taken away again
  bool force_training = false;
  Optimizer optimizer;
  int64_t accumulation = 1;  // micro-batches per applied step
  int64_t seed = 0;
};

struct CompileOptions {
  Policy policy;
  TrainOptions train;
  bool inference_only = false;          // no training step: precision passes on the graph alone
  std::map<std::string, int64_t> dims;  // --dim batch=32
  ImportLimits limits;                  // on the model file, and on what its functions expand to
  std::vector<std::string> skip_passes;
  std::string stop_after;
  std::vector<std::string> dump_after;  // pass names, or `all`
  std::string dump_folder = ".";
};

}  // namespace halfnote
