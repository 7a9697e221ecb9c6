// Gradients of LayerNormalization and RMSNormalization, through their fused gradients. These take a
// scale of the normalized shape; one that is smaller is expanded and its gradient summed, one that
// also varies from line to line is multiplied into dY beforehand.
#include "compiler/ir/model.h"
#include "compiler/ops/normalization/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::normalization {
namespace {

/// Does a parameter differ from line to line: has it dims above 1 before `axis` of X?
bool varies_by_line(Expr parameter, Expr x, int64_t axis) {
  const int64_t lead = axis - (x.rank() - parameter.rank());
  for (int64_t i = 0; i < lead; ++i) {
    if (!parameter.shape()[static_cast<size_t>(i)].is(1)) return true;
  }
  return false;
}

/// The parameter with the dims from `axis` of X on, and no others.
Expr as_line(Expr parameter, Expr x, int64_t axis) {
  Builder& b = *x.builder;
  const int64_t lead = axis - (x.rank() - parameter.rank());
  const Expr own = lead > 0 ? squeeze(parameter, axes_between(0, lead)) : parameter;
  const SymbolicShape shape = x.shape();
  bool same = own.rank() == x.rank() - axis;
  for (int64_t i = axis; same && i < x.rank(); ++i) {
    same = own.shape()[static_cast<size_t>(i - axis)].same_as(shape[static_cast<size_t>(i)]);
  }
  return same ? own : b.op("Expand", {own, dims_of(x, axis, x.rank())});
}

/// The gradient of a parameter of which `full` is that of its expanded form.
Expr undo_broadcast(Expr full, Expr parameter) {
  Builder& b = *full.builder;
  if (full.rank() < parameter.rank()) {
    full = unsqueeze(full, axes_between(0, parameter.rank() - full.rank()));
  }
  return b.cast(b.sum_to(full, parameter), parameter.dtype());
}

Expr ones_from(Expr x, int64_t axis) {
  Builder& b = *x.builder;
  return b.op("Expand", {b.scalar(x.dtype(), 1), dims_of(x, axis, x.rank())});
}

struct LineStatistics {
  Expr mean, inv_std;
};

/// ONNX gives Mean and InvStdDev of an f64 X in f32 at best: these are taken again in f64.
LineStatistics line_statistics(GradientContext& rule, Expr x, int64_t axis) {
  if (x.dtype() != DType::kF64) return {rule.request_output(1), rule.request_output(2)};
  Builder& b = rule.b;
  const std::vector<int64_t> inner = axes_between(axis, x.rank());
  const double epsilon = rule.attributes().get_float("epsilon", 1e-5f);
  const Expr mean = mean_keep(x, inner);
  const Expr centred = x - mean;
  const Expr deviation = b.op("Sqrt", {mean_keep(centred * centred, inner) + epsilon});
  return {mean, b.op("Reciprocal", {deviation})};
}

/// What flows into X through Mean and InvStdDev: ∂mean/∂x = 1/n and ∂inv_std/∂x =
/// −inv_std³·(x − mean)/n. None where nothing does.
Expr through_statistics(GradientContext& rule, Expr x, int64_t axis, const LineStatistics& s) {
  Builder& b = rule.b;
  const Expr wide = b.to_math(x);
  const auto grad = [&](size_t i) {
    const bool flows = i < rule.grads.size() && rule.grads[i].valid();
    return flows ? b.cast(rule.grads[i], wide.dtype()) : b.none();
  };
  const Expr of_mean = grad(1), of_inv_std = grad(2);
  Expr sum;
  if (of_inv_std.valid()) {
    const Expr inv_std = b.cast(s.inv_std, wide.dtype());
    sum = -(of_inv_std * inv_std * inv_std * inv_std) * (wide - b.cast(s.mean, wide.dtype()));
    if (of_mean.valid()) sum = sum + of_mean;
  } else if (of_mean.valid()) {
    sum = expand_like(of_mean, wide);
  }
  if (!sum.valid()) return b.none();
  const Expr count = count_along(x, axes_between(axis, x.rank()), wide.dtype());
  return b.cast(sum / count, x.dtype());
}

}  // namespace

std::vector<Expr> layer_normalization_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], scale = rule.inputs[1], dy = rule.grads[0];
  const int64_t axis = normalize_axis(rule.attributes().get_int("axis", -1), x.rank());
  const auto [mean, inv_std] = line_statistics(rule, x, axis);
  const Expr through = through_statistics(rule, x, axis, {mean, inv_std});
  if (!dy.valid()) {
    std::vector<Expr> results(rule.inputs.size(), b.none());
    results[0] = through;
    return results;
  }
  const bool by_line = varies_by_line(scale, x, axis);
  const Expr line = by_line ? ones_from(x, axis) : as_line(scale, x, axis);
  const auto grads =
      b.ops("LayerNormalizationGrad", {by_line ? dy * scale : dy, x, line, mean, inv_std}, 3,
            {{"axis", axis}}, kHalfnoteDomain);
  std::vector<Expr> results(rule.inputs.size(), b.none());
  results[0] = through.valid() ? grads[0] + through : grads[0];
  if (rule.needed[1] && by_line) {
    const Expr normalized = (x - b.cast(mean, x.dtype())) * b.cast(inv_std, x.dtype());
    results[1] = undo_broadcast(dy * normalized, scale);
  } else if (rule.needed[1]) {
    results[1] = undo_broadcast(grads[1], scale);
  }
  if (results.size() > 2 && rule.needed[2]) {
    const Expr bias = rule.inputs[2];
    const bool summed = !by_line && !varies_by_line(bias, x, axis);
    results[2] = undo_broadcast(summed ? grads[2] : dy, bias);
  }
  return results;
}

std::vector<Expr> rms_normalization_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], scale = rule.inputs[1];
  const int64_t axis = normalize_axis(rule.attributes().get_int("axis", -1), x.rank());
  Attributes attributes = {{"axis", axis}};
  if (const Attribute* epsilon = rule.attributes().find("epsilon")) {
    attributes.set("epsilon", *epsilon);
  }
  // X may have another type than scale and Y: both are then brought to f32, which holds them.
  const bool mixed = x.dtype() != scale.dtype();
  const auto same = [&](Expr e) { return mixed ? b.to_math(e) : e; };
  const Expr wide_x = same(x), wide_scale = same(scale), dy = same(rule.grads[0]);
  const bool by_line = varies_by_line(scale, x, axis);
  const Expr line = by_line ? ones_from(wide_x, axis) : as_line(wide_scale, x, axis);
  const auto grads = b.ops("RMSNormalizationGrad", {by_line ? dy * wide_scale : dy, wide_x, line},
                           2, attributes, kHalfnoteDomain);
  std::vector<Expr> results = {b.cast(grads[0], x.dtype()), b.none()};
  if (!rule.needed[1]) return results;
  Expr full = grads[1];
  if (by_line) full = dy * b.op("RMSNormalization", {wide_x, line}, attributes);
  results[1] = undo_broadcast(full, scale);
  return results;
}

}  // namespace halfnote::normalization
