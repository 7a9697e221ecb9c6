// Elementwise foreign ops. Most gradients are ours by another domain: the same operands and
// meaning.
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "passes/foreign/parts.h"

namespace halfnote::foreign {
namespace {

constexpr float kQuickAlpha = 1.702f;

Expr ours(LowerContext& c, std::string_view op, std::initializer_list<Expr> inputs,
          Attributes attributes = {}) {
  return c.b.op(op, inputs, std::move(attributes), kHalfnoteDomain);
}

/// x, or x + bias where the bias operand is there.
Expr biased(LowerContext& c, size_t x, size_t bias) {
  const Expr value = require_input(c, x);
  return c.has_input(bias) ? value + c.inputs[bias] : value;
}

}  // namespace

Results same_gradient(LowerContext& c) {
  const std::string op = c.b.graph().node(c.node).op;
  return {ours(c, op, {require_input(c, 0), require_input(c, 1)})};
}

Results leaky_relu_grad(LowerContext& c) {
  const float alpha = c.attributes().get_float("alpha", 0.01f);
  if (alpha < 0) refuse(c, "LeakyReluGrad reads Y, which tells nothing where alpha is negative");
  return {ours(c, "LeakyReluGrad", {require_input(c, 0), require_input(c, 1)}, {{"alpha", alpha}})};
}

Results gelu(LowerContext& c) { return {c.b.op("Gelu", {biased(c, 0, 1)})}; }

Results fast_gelu(LowerContext& c) {
  return {c.b.op("Gelu", {biased(c, 0, 1)}, {{"approximate", std::string("tanh")}})};
}

/// x·sigmoid(alpha·x).
Results quick_gelu(LowerContext& c) {
  const Expr x = require_input(c, 0);
  const double alpha = c.attributes().get_float("alpha", kQuickAlpha);
  return {x * c.b.op("Sigmoid", {x * alpha})};
}

Results gelu_grad(LowerContext& c) {
  return {ours(c, "GeluGrad", {require_input(c, 0), biased(c, 1, 2)})};
}

Results fast_gelu_grad(LowerContext& c) {
  return {ours(c, "GeluGrad", {require_input(c, 0), biased(c, 1, 2)},
               {{"approximate", std::string("tanh")}})};
}

Results quick_gelu_grad(LowerContext& c) {
  return {ours(c, "SwishGrad", {require_input(c, 0), require_input(c, 1)},
               {{"alpha", c.attributes().get_float("alpha", kQuickAlpha)}})};
}

Results div_grad(LowerContext& c) {
  return gradient_of(c, "Div", {}, {require_input(c, 1), require_input(c, 2)}, c.inputs[0],
                     {c.wants(0), c.wants(1)});
}

/// x·s, or x/s; s may be an integer.
Results scale(LowerContext& c) {
  const Expr x = require_input(c, 0);
  const Expr factor = c.b.cast(require_input(c, 1), x.dtype());
  return {c.attributes().get_int("scale_down", 0) != 0 ? x / factor : x * factor};
}

/// One operand, two or three results: x times scale_0, scale_1, scale_2.
Results batch_scale(LowerContext& c) {
  Results results;
  for (const char* name : {"scale0", "scale1", "scale2"}) {
    if (!c.attributes().has(name)) break;
    results.push_back(require_input(c, 0) * c.attributes().get_float(name, 1));
  }
  return results;
}

Results scaled_sum(LowerContext& c) {
  const char* names[] = {"scale_0", "scale_1", "scale_2"};
  Expr sum = require_input(c, 0) * c.attributes().get_float(names[0], 1);
  for (size_t i = 1; i < std::size(names) && c.has_input(i); ++i) {
    sum = sum + c.inputs[i] * c.attributes().get_float(names[i], 1);
  }
  return {sum};
}

/// (clip(round(x/scale) + zero, min, max) − zero)·scale, and where nothing was clipped.
Results fake_quant(LowerContext& c) {
  Builder& b = c.b;
  const Expr x = require_input(c, 0), step = require_input(c, 1);
  const Expr zero = b.cast(require_input(c, 2), x.dtype());
  const Expr low = b.scalar(x.dtype(), double(c.attributes().get_int("quant_min", 0)));
  const Expr high = b.scalar(x.dtype(), double(c.attributes().get_int("quant_max", 255)));
  const Expr level = b.op("Round", {x / step}) + zero;
  const Expr inside =
      b.op("And", {b.op("GreaterOrEqual", {level, low}), b.op("LessOrEqual", {level, high})});
  return {(b.op("Clip", {level, low, high}) - zero) * step, inside};
}

Results fake_quant_grad(LowerContext& c) {
  return {mask_zero(require_input(c, 1), require_input(c, 0))};
}

Results pass_through(LowerContext& c) { return c.inputs; }

/// A barrier: true once its operands are there.
Results group(LowerContext& c) { return {c.b.constant(Tensor::of<bool>({1}, {true}))}; }

Results all_l2(LowerContext& c) {
  std::vector<Expr> wide;
  for (const Expr& x : c.inputs) wide.push_back(c.b.cast(x, DType::kF32));
  return c.b.ops("GlobalNorm", wide, 1, {}, kHalfnoteDomain);
}

Results all_finite(LowerContext& c) {
  return c.b.ops("AllFinite", c.inputs, 1, {}, kHalfnoteDomain);
}

Results is_finite(LowerContext& c) {
  const Expr x = require_input(c, 0);
  return {c.b.op("Not", {c.b.op("Or", {c.b.op("IsInf", {x}), c.b.op("IsNaN", {x})})})};
}

/// One element, whatever the shape of the operand; true for an empty one.
Results all_true(LowerContext& c) {
  const Expr flat = c.b.reshape(c.b.cast(require_input(c, 0), DType::kI32), c.b.ints({-1}));
  return {c.b.cast(c.b.op("ReduceMin", {flat}, {{"keepdims", int64_t{1}}}), DType::kBool)};
}

}  // namespace halfnote::foreign
