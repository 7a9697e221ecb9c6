// Arithmetic of one, two or many operands that broadcast against each other.
//
// Every gradient is computed in the shape of the result and then summed to that of its operand.
#include "compiler/ops/elementwise/derivatives.h"
#include "compiler/ops/elementwise/parts.h"

namespace halfnote::elementwise {
namespace {

using derivative::call;
using derivative::greater;
using derivative::number;
using derivative::zero;
using enum PrecisionClass;

std::vector<Expr> add_gradient(GradientContext& rule) {
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  for (size_t i = 0; i < results.size(); ++i) {
    if (rule.needed[i]) results[i] = rule.b.sum_to(rule.grads[0], rule.inputs[i]);
  }
  return results;
}

std::vector<Expr> sub_gradient(GradientContext& rule) {
  std::vector<Expr> results = add_gradient(rule);
  if (rule.needed[1]) results[1] = -results[1];
  return results;
}

std::vector<Expr> mul_gradient(GradientContext& rule) {
  const Expr dy = rule.grads[0], a = rule.inputs[0], b = rule.inputs[1];
  std::vector<Expr> results(2, rule.b.none());
  if (rule.needed[0]) results[0] = rule.b.sum_to(dy * b, a);
  if (rule.needed[1]) results[1] = rule.b.sum_to(dy * a, b);
  return results;
}

std::vector<Expr> div_gradient(GradientContext& rule) {
  const Expr dy = rule.grads[0], a = rule.inputs[0], b = rule.inputs[1], y = rule.outputs[0];
  std::vector<Expr> results(2, rule.b.none());
  const Expr da = dy / b;
  if (rule.needed[0]) results[0] = rule.b.sum_to(da, a);
  if (rule.needed[1]) results[1] = -rule.b.sum_to(da * y, b);
  return results;
}

std::vector<Expr> neg_gradient(GradientContext& rule) { return {-rule.grads[0]}; }

std::vector<Expr> mean_gradient(GradientContext& rule) {
  std::vector<Expr> results = add_gradient(rule);
  const auto count = static_cast<double>(results.size());
  for (Expr& result : results) {
    if (result.valid() && count > 1) result = result / count;
  }
  return results;
}

/// dY·e·x^(e−1). A constant exponent is spared the general formula; where e is 0 the slope is 0
/// although x^(−1) may be infinite.
Expr pow_base_gradient(GradientContext& rule) {
  const Expr dy = rule.grads[0], x = rule.inputs[0], e = rule.inputs[1];
  const Tensor* constant = rule.graph().constant(e.id);
  if (constant != nullptr && constant->size() == 1) {
    const double exponent = constant->at_as_double(0);
    if (exponent == 0) return rule.b.none();
    if (exponent == 1) return dy;
    if (exponent == 2) return dy * (x * 2.0);
    if (exponent == 0.5) return dy / (rule.outputs[0] * 2.0);
    return dy * (call("Pow", x, number(x, exponent - 1)) * exponent);
  }
  const Expr exponent = rule.b.cast(e, x.dtype());
  const Expr slope = exponent * call("Pow", x, exponent - 1.0);
  return dy * where(call("Equal", exponent, zero(x)), zero(x), slope);
}

/// dE = dY·y·log(x); 0 where x is not positive, for there y is no smooth function of e.
std::vector<Expr> pow_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0], e = rule.inputs[1], y = rule.outputs[0];
  std::vector<Expr> results(2, rule.b.none());
  if (rule.needed[0]) {
    const Expr full = pow_base_gradient(rule);
    if (full.valid()) results[0] = rule.b.sum_to(full, x);
  }
  if (rule.needed[1] && is_float(e.dtype())) {
    const Expr slope = where(greater(x, 0), y * call("Log", x), zero(y));
    results[1] = rule.b.cast(rule.b.sum_to(rule.grads[0] * slope, e), e.dtype());
  }
  return results;
}

/// C = A − q·B with the whole number q = (A − C) / B, which is constant but for jumps.
std::vector<Expr> mod_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr dc = rule.grads[0], a = rule.inputs[0], divisor = rule.inputs[1];
  std::vector<Expr> results(2, b.none());
  if (rule.needed[0]) results[0] = b.sum_to(dc, a);
  if (rule.needed[1]) {
    const Expr quotient = call("Round", (a - rule.outputs[0]) / divisor);
    results[1] = b.sum_to(-(dc * quotient), divisor);
  }
  return results;
}

}  // namespace

std::vector<OperatorRow> arithmetic_rows() {
  return {
      {.name = "Add",
       .precision = kInfer,
       .legality = {1, 13},
       .scale = ScaleRule::kSame,
       .gradient = add_gradient},
      {.name = "Div",
       .precision = kInfer,
       .legality = {1, 13},
       .scale = ScaleRule::kQuotient,
       .gradient = div_gradient,
       .note = "a denominator below 6e-8 is 0 in f16"},
      {.name = "Mean",
       .precision = kInfer,
       .legality = {1, 13},
       .scale = ScaleRule::kSame,
       .gradient = mean_gradient,
       .note = "of the operands, element by element"},
      {.name = "Mod",
       .precision = kInfer,
       .legality = {10, 13},
       .gradient = mod_gradient,
       .note = "not exact above 2048 in f16"},
      {.name = "Mul",
       .precision = kInfer,
       .legality = {1, 13},
       .scale = ScaleRule::kProduct,
       .gradient = mul_gradient},
      {.name = "Neg",
       .precision = kClear,
       .legality = {1, 13},
       .scale = ScaleRule::kFirst,
       .gradient = neg_gradient},
      {.name = "Pow",
       .precision = kFp32,
       .legality = {1, 13},
       .fp32_inputs = 1u << 1,  // the exponent has a type of its own
       .gradient = pow_gradient,
       .note = "a square may be written as Mul and then follows"},
      {.name = "Sub",
       .precision = kInfer,
       .legality = {1, 13},
       .scale = ScaleRule::kSame,
       .gradient = sub_gradient},
      {.name = "Sum",
       .precision = kInfer,
       .legality = {1, 13},
       .scale = ScaleRule::kSame,
       .gradient = add_gradient,
       .note = "of the operands, element by element, f32 inside"},
      {.name = "SwiGLU",
       .precision = kInfer,
       .legality = {28, 28},
       .no_gradient = "newer than op-set 23: lifting expands it",
       .note = "Swish(A)·B"},
  };
}

}  // namespace halfnote::elementwise
