// Gradients of the normalizations over groups of channels, and of the rare ones, in standard ops.
// The nodes take the class of the forward op: f32.
//
//   Lp:   y = x / n,                 dX = (dY − sign(x) or y · Σ dY·y) / n
//   LRN:  y = x·d^−β, d = bias + a·Σ x²,   dX = dY·d^−β − 2aβ·x·Σ' dY·y/d, Σ' the mirrored window
//   MVN:  y = (x − m)/(σ + 1e-9),    dX = (dY − mean(dY))/(σ + 1e-9) − y·mean(dY·y)/σ
#include <cmath>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/movement/parts.h"
#include "compiler/ops/normalization/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::normalization {
namespace {

/// `groups` 0: every channel is one.
std::vector<Expr> through_groups(GradientContext& rule, int64_t groups) {
  Builder& b = rule.b;
  Attributes attributes = {{"num_groups", groups}};
  if (const Attribute* epsilon = rule.attributes().find("epsilon")) {
    attributes.set("epsilon", *epsilon);
  }
  return b.ops("GroupNormalizationGrad", {rule.grads[0], rule.inputs[0], rule.inputs[1]}, 3,
               std::move(attributes), kHalfnoteDomain);
}

/// a / b, 0 where b is 0.
Expr divided(Expr a, Expr divisor) {
  Builder& b = *a.builder;
  const Expr is_zero = b.op("Equal", {divisor, b.scalar(divisor.dtype(), 0)});
  const Expr safe = b.op("Where", {is_zero, b.scalar(divisor.dtype(), 1), divisor});
  return b.op("Where", {is_zero, b.scalar(a.dtype(), 0), a / safe});
}

/// Σ over channels c − before … c + after of (N, C, …), zeros beyond the border.
Expr channel_sums(Expr x, int64_t before, int64_t after) {
  Builder& b = *x.builder;
  const auto spatial = static_cast<size_t>(x.rank() - 1);
  std::vector<int64_t> kernel(spatial, 1), pads(2 * spatial, 0);
  kernel[0] = before + after + 1;
  pads[0] = before;
  pads[spatial] = after;
  const Expr mean =
      b.op("AveragePool", {unsqueeze(x, {1})},
           {{"kernel_shape", kernel}, {"pads", pads}, {"count_include_pad", int64_t{1}}});
  return movement::with_type_of(squeeze(mean, {1}) * static_cast<double>(kernel[0]), x);
}

}  // namespace

std::vector<Expr> group_normalization_gradient(GradientContext& rule) {
  return through_groups(rule, rule.attributes().get_int("num_groups", 0));
}

std::vector<Expr> instance_normalization_gradient(GradientContext& rule) {
  return through_groups(rule, 0);
}

std::vector<Expr> lp_normalization_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], y = rule.outputs[0], dy = rule.grads[0];
  const int64_t axis = rule.attributes().get_int("axis", -1);
  const bool is_l1 = rule.attributes().get_int("p", 2) == 1;
  const Expr norm = b.op(is_l1 ? "ReduceL1" : "ReduceL2", {x, b.ints({axis})});
  const Expr slope = is_l1 ? b.op("Sign", {x}) : y;
  return {divided(dy - slope * b.reduce_sum(dy * y, {axis}, true), norm)};
}

std::vector<Expr> lrn_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], y = rule.outputs[0], dy = rule.grads[0];
  const int64_t size = rule.attributes().get_int("size", 1);
  const double beta = rule.attributes().get_float("beta", 0.75f);
  const double share = rule.attributes().get_float("alpha", 1e-4f) / static_cast<double>(size);
  const double bias = rule.attributes().get_float("bias", 1.0f);
  const int64_t before = (size - 1) / 2, after = size / 2;
  const Expr base = channel_sums(x * x, before, after) * share + bias;
  const Expr power = b.op("Pow", {base, b.scalar(x.dtype(), -beta)});
  const Expr neighbours = channel_sums(dy * y / base, after, before);
  return {dy * power - x * neighbours * (2 * share * beta)};
}

std::vector<Expr> mean_variance_normalization_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], dy = rule.grads[0];
  const std::vector<int64_t> axes = rule.attributes().get_ints("axes", {0, 2, 3});
  const Expr centred = x - mean_keep(x, axes);
  const Expr deviation = b.op("Sqrt", {mean_keep(centred * centred, axes)});
  const Expr divisor = deviation + 1e-9;
  const Expr y = rule.outputs[0];
  return {(dy - mean_keep(dy, axes)) / divisor - divided(y * mean_keep(dy * y, axes), deviation)};
}

}  // namespace halfnote::normalization
