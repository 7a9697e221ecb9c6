// What the user asks of a compilation: plain data, filled from the policy file and the command
// line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
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
  std::string like;           // a framework's op lists (passes/precision/like.h); empty: our own
  std::vector<std::string> allow_ops, fp32_ops;
  std::vector<std::string> allow_nodes, fp32_nodes;  // RE2, full match
  /// Of rules from a policy file, by list (`fp32_nodes`) and rule: FILE:LINE.
  std::map<std::pair<std::string, std::string>, std::string> sources;
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
  /// constant, linear, cosine, step; as DeepSpeed has them, range_test: lr · (1 + slope · s /
  /// step_size), and one_cycle: from final_factor up to 1 in step_size steps, down again until
  /// `total`, then divided by 1 + slope · the steps since
  std::string kind = "constant";
  int64_t warmup = 0;                  // applied steps of warm-up
  std::string warmup_kind = "linear";  // (s + 1) / warmup; from_zero: s / warmup; log: log(s + 1)
  float warmup_factor = 0.0f;          // of lr where the warm-up begins
  int64_t delay = 0;                   // applied steps before the warm-up's s counts
  int64_t decay_start = 0;             // the step that linear, cosine, step start at; 0: warmup
  int64_t total = 0;                   // applied steps until the end of linear or cosine
  float final_factor = 0.0f;           // of lr at the end
  int64_t step_size = 0;               // of step: every so many applied steps …
  float gamma = 0.1f;                  // … lr is multiplied by this
  float slope = 0.0f;                  // of range_test and one_cycle
  bool staircase = false;              // range_test: s / step_size in whole numbers
  bool zero_first = false;             // the first step has a rate of 0
};

struct Optimizer {
  std::string kind = "adamw";  // a row of passes/train/optimizer_form.cc
  bool chosen = false;         // named by the user: an artifact's own gives way
  float lr = 1e-3f;
  std::optional<float> momentum;  // default: 0.9; of rmsprop 0
  float dampening = 0.0f;
  float beta1 = 0.9f;
  std::optional<float> beta2;    // each kind has its own default
  std::optional<float> epsilon;  // likewise
  float weight_decay = 0.0f;
  bool correct_bias = true;  // of adamw and hf_adamw
  float alpha = 0.99f;       // rmsprop
  bool centered = false;
  float lr_decay = 0.0f;  // adagrad
  float initial_accumulator = 0.0f;
  float min_ratio = 0.0f, max_ratio = 0.0f;  // lamb: bounds of the trust ratio; 0: none
  float decay_rate = -0.8f;                  // adafactor
  float clip_threshold = 1.0f, epsilon_param = 1e-3f;
  bool relative_step = true, scale_parameter = true;
  float clip_norm = 0.0f;              // global L2 norm; 0: no clipping
  std::vector<ParameterGroup> groups;  // the first that matches holds
  bool no_decay_on_1d = false;         // norms and biases
  Schedule schedule;
};

struct TrainOptions {
  std::string loss;  // attached to a graph without a loss: a row of passes/train/losses.cc
  /// The outputs that are the loss, for a graph that has it: `NAME` or `NAME*0.5`; the loss is
  /// their sum.
  std::vector<std::string> loss_outputs;
  std::string loss_input;  // the value the attached loss reads; default: the first output
  float huber_delta = 1.0f;
  float label_smoothing = 0.0f;  // of cross_entropy and nll
  int64_t ignore_index = -100;   // of cross_entropy and nll: a label that counts nothing
  int64_t class_axis = 1;        // of cross_entropy and nll: of the scores; -1 is the last
  std::vector<std::string>
      trainable;                    // RE2 on initializer names; empty: all that look like weights
  std::vector<std::string> frozen;  // RE2, taken away again
  std::vector<std::string> tied;    // A=B: two initializers that are one parameter
  bool force_training = false;
  Optimizer optimizer;
  int64_t accumulation = 1;  // micro-batches per applied step
  int64_t micro_batch = 0;   // samples of a micro-batch that `run` takes by default; 0: its own
  int64_t update_batch = 0;  // samples of an update, where a file fixes them; 0: it does not
  int64_t seed = 0;
};

/// Where a setting came from, and what it is called there.
struct SettingSource {
  std::string place;  // FILE:LINE, or FILE; empty for a flag
  std::string name;   // --lr, optimizer.lr or, of a DeepSpeed file, optimizer.params.lr
};

struct CompileOptions {
  Policy policy;
  TrainOptions train;
  bool inference_only = false;          // no training step: precision passes on the graph alone
  std::map<std::string, int64_t> dims;  // --dim batch=32
  /// The settings that somebody gave, by their keys in a policy file (`optimizer.beta1`).
  std::map<std::string, SettingSource> sources;
  /// The flags that set keys, for messages on what nobody gave; empty where there are none.
  std::map<std::string, std::string> flags;
  ImportLimits limits;  // on the model file, and on what its functions expand to
  std::vector<std::string> skip_passes;
  std::string stop_after;
  std::vector<std::string> dump_after;  // pass names, or `all`
  std::string dump_folder = ".";
};

}  // namespace halfnote
