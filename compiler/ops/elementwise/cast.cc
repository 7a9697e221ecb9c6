// Conversions of type. The gradient is converted back; an operand that is no float has none.
#include "compiler/ops/elementwise/parts.h"

namespace halfnote::elementwise {
namespace {

using enum PrecisionClass;

std::vector<Expr> cast_gradient(GradientContext& rule) {
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  const DType dtype = rule.inputs[0].dtype();
  if (is_float(dtype)) results[0] = rule.b.cast(rule.grads[0], dtype);
  return results;
}

}  // namespace

std::vector<OperatorRow> cast_rows() {
  return {
      {.name = "BitCast",
       .precision = kOpaque,
       .legality = {26, 26},
       .no_gradient = "reinterprets bits: no gradient exists",
       .note = "no cast moves across it"},
      {.name = "Cast",
       .precision = kClear,
       .legality = {1, 13},
       .scale = ScaleRule::kFirst,
       .gradient = cast_gradient,
       .note = "the model's own; to f64 and integers it stays"},
      {.name = "CastLike",
       .precision = kClear,
       .legality = {15, 15},
       .fp32_inputs = 1u << 1,  // only its type is read
       .scale = ScaleRule::kFirst,
       .gradient = cast_gradient},
  };
}

}  // namespace halfnote::elementwise
