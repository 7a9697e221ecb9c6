// Gradients of the normalizations and of softmax. With x̂ = (x − mean)·r and means over the
// normalized axes:
//   training:   dX = scale·r·(dY − mean(dY) − x̂·mean(dY·x̂)), dScale = Σ dY·x̂, dB = Σ dY
//   inference:  dX = dY·scale·r (the statistics are constants)
// The fused gradients of ai.halfnote hold the first form; their bodies spell it out.
#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/normalization/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::normalization {
namespace {

void refuse_running_statistics(const GradientContext& rule) {
  for (size_t i = 1; i < rule.grads.size(); ++i) {
    if (!rule.grads[i].valid()) continue;
    throw Error(ErrorCode::kUnsupported, "a gradient flows through the statistics of the batch")
        .expected("a loss that reads only the first output", "output " + std::to_string(i));
  }
}

std::vector<Expr> from_saved(GradientContext& rule, Expr grad, Expr mean, Expr inv_std) {
  const Expr x = rule.inputs[0], scale = rule.inputs[1];
  std::vector<Expr> results =
      rule.b.ops("BatchNormalizationGrad", {grad, x, scale, mean, inv_std}, 3, {}, kHalfnoteDomain);
  results.resize(rule.inputs.size(), rule.b.none());
  return results;
}

/// Frozen statistics: Y = (X − mean)·r·scale + B with r = 1/sqrt(var + epsilon), all per channel.
std::vector<Expr> frozen_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr grad = rule.grads[0], x = rule.inputs[0], scale = rule.inputs[1];
  const DType dtype = x.dtype();
  const int rank = x.rank();
  const double epsilon = rule.attributes().get_float("epsilon", 1e-5f);
  const Expr variance = b.cast(rule.inputs[4], dtype) + epsilon;
  const Expr inv_std = b.op("Reciprocal", {b.op("Sqrt", {variance})});
  const Expr gain = b.cast(scale, dtype) * inv_std;

  std::vector<Expr> results(5, b.none());
  if (rule.needed[0]) results[0] = grad * per_channel(gain, rank);
  const bool statistics = rule.needed[3] || rule.needed[4];
  if (!rule.needed[1] && !rule.needed[2] && !statistics) return results;

  const Expr sum = b.reduce_sum(grad, axes_but_channel(rank), false);
  if (rule.needed[2]) results[2] = b.cast(sum, rule.inputs[2].dtype());
  if (rule.needed[3]) results[3] = b.cast(-(sum * gain), rule.inputs[3].dtype());
  if (!rule.needed[1] && !rule.needed[4]) return results;
  const Expr centred = x - per_channel(b.cast(rule.inputs[3], dtype), rank);
  const Expr moment = b.reduce_sum(grad * centred, axes_but_channel(rank), false);
  if (rule.needed[1]) results[1] = b.cast(moment * inv_std, scale.dtype());
  if (rule.needed[4]) {
    const Expr slope = moment * gain * inv_std * inv_std * -0.5;
    results[4] = b.cast(slope, rule.inputs[4].dtype());
  }
  return results;
}

std::vector<Expr> from_output(GradientContext& rule, std::string_view op) {
  const int64_t axis = rule.attributes().get_int("axis", -1);
  return {rule.b.op(op, {rule.grads[0], rule.outputs[0]}, {{"axis", axis}}, kHalfnoteDomain)};
}

}  // namespace

std::vector<Expr> batch_normalization_gradient(GradientContext& rule) {
  if (rule.attributes().get_int("training_mode", 0) == 0) return frozen_gradient(rule);
  refuse_running_statistics(rule);
  Attributes attributes;
  for (const char* name : {"epsilon", "momentum"}) {
    if (const Attribute* value = rule.attributes().find(name)) attributes.set(name, *value);
  }
  const std::vector<Expr> saved =
      rule.replace_forward("BatchNormalization", kHalfnoteDomain, attributes, rule.inputs, 5);
  return from_saved(rule, rule.grads[0], saved[3], saved[4]);
}

std::vector<Expr> saved_batch_normalization_gradient(GradientContext& rule) {
  refuse_running_statistics(rule);
  const Expr mean = rule.request_output(3), inv_std = rule.request_output(4);
  const bool relu = rule.attributes().get_string("activation", "") == "Relu";
  const Expr grad =
      relu ? rule.b.op("ReluGrad", {rule.grads[0], rule.outputs[0]}, {}, kHalfnoteDomain)
           : rule.grads[0];
  std::vector<Expr> results = from_saved(rule, grad, mean, inv_std);
  constexpr size_t kResidual = 5;
  if (results.size() > kResidual) results[kResidual] = grad;
  return results;
}

std::vector<Expr> softmax_gradient(GradientContext& rule) {
  return from_output(rule, "SoftmaxGrad");
}

std::vector<Expr> log_softmax_gradient(GradientContext& rule) {
  return from_output(rule, "LogSoftmaxGrad");
}

}  // namespace halfnote::normalization
