// Ops that select between operands, or between an operand and a bound.
#include "compiler/ir/model.h"
#include "compiler/ops/elementwise/derivatives.h"
#include "compiler/ops/elementwise/parts.h"
#include "compiler/ops/families.h"

namespace halfnote::elementwise {
namespace {

using derivative::call;
using derivative::greater;
using derivative::less;
using derivative::zero;
using enum PrecisionClass;

bool has_input(const std::vector<Expr>& inputs, size_t index) {
  return index < inputs.size() && inputs[index].valid();
}

std::vector<Expr> where_gradient(GradientContext& rule) {
  const Expr condition = rule.inputs[0], dy = rule.grads[0];
  std::vector<Expr> results(3, rule.b.none());
  if (rule.needed[1]) results[1] = rule.b.sum_to(where(condition, dy, zero(dy)), rule.inputs[1]);
  if (rule.needed[2]) results[2] = rule.b.sum_to(where(condition, zero(dy), dy), rule.inputs[2]);
  return results;
}

/// The elements that lie below min (above max) answer to that bound. Where min > max all do to max.
std::vector<Expr> clip_gradient(GradientContext& rule) {
  const Expr dy = rule.grads[0], x = rule.inputs[0];
  const bool has_min = has_input(rule.inputs, 1), has_max = has_input(rule.inputs, 2);
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  if (rule.needed[0]) {
    std::vector<Expr> operands = {dy, x};
    if (has_min || has_max) operands.push_back(has_min ? rule.inputs[1] : rule.b.none());
    if (has_max) operands.push_back(rule.inputs[2]);
    results[0] = rule.b.ops("ClipGrad", operands, 1, {}, kHalfnoteDomain)[0];
  }
  if (has_min && rule.needed[1]) {
    Expr below = call("Less", x, rule.inputs[1]);
    if (has_max) below = call("And", below, call("LessOrEqual", rule.inputs[1], rule.inputs[2]));
    results[1] = rule.b.sum_to(where(below, dy, zero(dy)), rule.inputs[1]);
  }
  if (has_max && rule.needed[2]) {
    const Expr raised = has_min ? call("Max", x, rule.inputs[1]) : x;
    const Expr above = call("Greater", raised, rule.inputs[2]);
    results[2] = rule.b.sum_to(where(above, dy, zero(dy)), rule.inputs[2]);
  }
  return results;
}

std::vector<Expr> clip_grad_body(BodyContext& body) {
  // Only selects, but runtimes have their kernels for f32.
  const Expr dy = body.b.to_math(body.inputs[0]), x = body.b.to_math(body.inputs[1]);
  Expr inside;
  if (has_input(body.inputs, 2)) {
    inside = call("GreaterOrEqual", x, body.b.to_math(body.inputs[2]));
  }
  if (has_input(body.inputs, 3)) {
    const Expr not_above = call("LessOrEqual", x, body.b.to_math(body.inputs[3]));
    inside = inside.valid() ? call("And", inside, not_above) : not_above;
  }
  const Expr dx = inside.valid() ? where(inside, dy, zero(dy)) : call("Identity", dy);
  return {body.b.cast(dx, body.output_types[0].dtype)};
}

/// Operands that tie share the gradient. No operand equals a NaN result: 0/0 lets NaN through.
std::vector<Expr> extremum_gradient(GradientContext& rule) {
  const Expr dy = rule.grads[0];
  if (rule.inputs.size() == 1) return {dy};
  std::vector<Expr> chosen;
  for (const Expr& input : rule.inputs) {
    chosen.push_back(rule.b.cast(call("Equal", input, rule.outputs[0]), dy.dtype()));
  }
  const Expr share = dy / rule.b.ops("Sum", chosen, 1)[0];
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  for (size_t i = 0; i < results.size(); ++i) {
    if (rule.needed[i]) results[i] = rule.b.sum_to(share * chosen[i], rule.inputs[i]);
  }
  return results;
}

std::vector<Expr> prelu_gradient(GradientContext& rule) {
  const Expr dy = rule.grads[0], x = rule.inputs[0], slope = rule.inputs[1];
  const Expr negative = less(x, 0);
  std::vector<Expr> results(2, rule.b.none());
  // At 0 the slope counts, as for LeakyRelu and in PyTorch.
  if (rule.needed[0]) results[0] = where(greater(x, 0), dy, dy * slope);
  if (rule.needed[1]) results[1] = rule.b.sum_to(where(negative, dy * x, zero(dy)), slope);
  return results;
}

}  // namespace

std::vector<OperatorRow> select_rows() {
  return {
      {.name = "Clip",
       .precision = kClear,
       .legality = {1, 13},
       .gradient = clip_gradient,
       .saturates = true,
       .note = "the bounds have the type of X and must fit it"},
      {.name = "Max", .precision = kClear, .legality = {1, 13}, .gradient = extremum_gradient},
      {.name = "Min", .precision = kClear, .legality = {1, 13}, .gradient = extremum_gradient},
      {.name = "PRelu",
       .precision = kInfer,
       .legality = {1, 16},
       .gradient = prelu_gradient,
       .note = "the slope has the type of X"},
      {.name = "Where",
       .precision = kClear,
       .legality = {9, 16},
       .scale = ScaleRule::kSame,
       .gradient = where_gradient,
       .note = "-1e9 and the like become -inf in f16"},
      {.domain = kHalfnoteDomain,
       .name = "ClipGrad",
       .precision = kClear,
       .legality = {1, 1},
       .scale = ScaleRule::kFirst,
       .no_gradient = kSecond,
       .infer = infer_like_grad,
       .body = clip_grad_body,
       .note = "dY inside of the bounds, else 0"},
  };
}

}  // namespace halfnote::elementwise
