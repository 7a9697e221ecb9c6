// Conversions of type. The gradient is converted back; an operand that is no float has none.
// Through a rounding to 8 bits it goes as it is (straight-through): it is never an 8-bit number
// itself.
#include "compiler/ops/elementwise/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::elementwise {
namespace {

using enum PrecisionClass;

std::vector<Expr> cast_gradient(GradientContext& rule) {
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  const DType dtype = rule.inputs[0].dtype();
  if (is_float(dtype)) results[0] = rule.b.cast(rule.grads[0], gradient_dtype(dtype));
  return results;
}

/// A Cast states its type, whatever becomes of the operand that CastLike reads it from.
std::vector<Expr> lower_cast_like(LowerContext& rule) {
  const DType dtype = rule.inputs[1].dtype();
  if (dtype == DType::kUndefined) return {};
  Attributes attributes = rule.attributes();
  attributes.set("to", static_cast<int64_t>(dtype));
  return {rule.b.op("Cast", {rule.inputs[0]}, std::move(attributes))};
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
       .no_gradient = kLowered,
       .lower = lower_cast_like},
  };
}

}  // namespace halfnote::elementwise
