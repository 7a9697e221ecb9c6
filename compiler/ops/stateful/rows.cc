// The operator rows of random numbers, dropout, the optimizers and the loss scaler.
#include "compiler/ir/model.h"
#include "compiler/ops/families.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/stateful/parts.h"

namespace halfnote {
namespace {

using namespace stateful;  // NOLINT(google-build-using-namespace): the rules of this family
using enum PrecisionClass;

constexpr std::string_view kUpdate = "part of the update: nothing is differentiated through it";
constexpr uint32_t kEveryInput = ~0u;

constexpr std::string_view kStream = "sampled in f32, so that the stream does not depend on types";

/// A random op of ONNX. Its operand, if it has one, gives the shape only.
OperatorRow random_row(std::string_view name, DrawRule draw) {
  return {.name = name,
          .precision = kFp32,
          .legality = {1, 22},
          .purity = Purity::kRandom,
          .scale = ScaleRule::kAbsorb,
          .gradient = no_values,
          .draw = draw,
          .note = kStream};
}

std::string why_drawn(const Graph&, NodeId) { return "draws whole numbers: no gradient exists"; }

/// One that is lowered to uniform numbers. What it draws are counts, whatever their type.
OperatorRow lowered_random(std::string_view name, Legality legality, LowerRule lower,
                           std::string_view note) {
  return {.name = name,
          .precision = kFp32,
          .legality = legality,
          .purity = Purity::kRandom,
          .no_gradient = kLowered,
          .no_gradient_here = why_drawn,
          .lower = lower,
          .note = note};
}

/// Random numbers of ours: functions of a stream, not of the values of any float.
template <BodyRule body>
OperatorRow stream_row(std::string_view name) {
  return {.domain = kHalfnoteDomain,
          .name = name,
          .precision = kOpaque,
          .legality = {1, 1},
          .scale = ScaleRule::kAbsorb,
          .gradient = no_values,
          .infer = infer_random,
          .body = body,
          .note = "counter-based: a function of seed, step and node"};
}

/// An optimizer: all tensors and scalars in full precision, `commit` its last input but for those
/// that device passes add (optimizers.cc).
template <int commit, InferRule infer, BodyRule body>
OperatorRow optimizer_row(std::string_view name, std::string_view note) {
  return {.domain = kHalfnoteDomain,
          .name = name,
          .precision = kFp32,
          .fp32_inputs = kEveryInput,
          .fp32_outputs = kEveryInput,
          .commit_input = commit,
          .no_gradient = kUpdate,
          .infer = infer_update<infer>,
          .body = update_body<commit, body>,
          .note = note};
}

OperatorRow onnx_dropout() {
  return {.name = "Dropout",
          .precision = kInfer,
          .legality = {1, 13},
          .fp32_inputs = 0b10,  // ratio
          .purity = Purity::kRandom,
          .scale = ScaleRule::kFirst,
          .gradient = inference_dropout_gradient,
          .note = "in training form rewritten to ai.halfnote.Dropout"};
}

OperatorRow dropout() {
  return {.domain = kHalfnoteDomain,
          .name = "Dropout",
          .precision = kInfer,
          .legality = {1, 1},
          .scale = ScaleRule::kFirst,
          .gradient = dropout_gradient,
          .infer = infer_like<0>,
          .body = dropout_body,
          .note = "counter-based: the mask is a function of seed, step and node"};
}

std::vector<OperatorRow> scaler_rows() {
  return {
      {.domain = kHalfnoteDomain,
       .name = "AllFinite",
       .precision = kOpaque,
       .legality = {1, 1},
       .scale = ScaleRule::kAbsorb,
       .no_gradient = kUpdate,
       .infer = infer_all_finite,
       .body = all_finite_body,
       .note = "reads each operand in its own type"},
      {.domain = kHalfnoteDomain,
       .name = "GlobalNorm",
       .precision = kFp32,
       .fp32_inputs = kEveryInput,
       .fp32_outputs = kEveryInput,
       .no_gradient = kUpdate,
       .infer = infer_global_norm,
       .body = global_norm_body,
       .note = "accumulated in f64; takes unscaled gradients only"},
      {.domain = kHalfnoteDomain,
       .name = "UpdateLossScale",
       .precision = kOpaque,
       .fp32_inputs = 0b1001,
       .fp32_outputs = 0b1001,
       .scale = ScaleRule::kSame,
       .no_gradient = kUpdate,
       .infer = infer_like<0, 1, 2, 3, 4, 5, 6, 7>,
       .body = update_loss_scale_body,
       .note = "the dynamic loss scale's state after a step"},
  };
}

}  // namespace

std::vector<OperatorRow> stateful_rows() {
  std::vector<OperatorRow> rows = {
      lowered_random("Bernoulli", {15, 22}, lower_bernoulli, "the probability is compared in f64"),
      onnx_dropout(),
      lowered_random("Multinomial", {7, 22}, lower_multinomial, "integer samples"),
      random_row("RandomNormal", draw_normal),
      random_row("RandomNormalLike", draw_normal),
      random_row("RandomUniform", draw_uniform),
      random_row("RandomUniformLike", draw_uniform),
      stream_row<random_normal_body>("RandomNormal"),
      stream_row<random_uniform_body>("RandomUniform"),
      optimizer_row<6, infer_adafactor, adafactor_body>(
          "Adafactor", "second moment as means of rows and columns; PyTorch's form"),
      optimizer_row<5, infer_like<0, 2>, adagrad_body>("Adagrad", "PyTorch's Adagrad"),
      optimizer_row<6, infer_like<0, 2, 3>, adam_body>(
          "Adam", "PyTorch's Adam; weight decay is added to the gradient"),
      optimizer_row<6, infer_like<0, 2, 3>, adam_w_body>("AdamW",
                                                         "Adam with decoupled weight decay"),
      dropout(),
      optimizer_row<6, infer_like<0, 2, 3>, lamb_body>(
          "Lamb", "AdamW's direction, scaled to the norm of the parameter"),
      optimizer_row<4, infer_like<0, 2>, lion_body>("Lion", "the sign of a momentum"),
      optimizer_row<5, infer_like<0, 2>, momentum_body>(
          "Momentum", "PyTorch's SGD with momentum, Nesterov's form too"),
      optimizer_row<6, infer_rmsprop, rmsprop_body>(
          "RMSprop", "PyTorch's RMSprop, centered and with momentum too"),
      optimizer_row<3, infer_like<0>, sgd_body>("SGD", "plain gradient descent"),
  };
  const std::vector<OperatorRow> scaler = scaler_rows();
  rows.insert(rows.end(), scaler.begin(), scaler.end());
  return rows;
}

}  // namespace halfnote
