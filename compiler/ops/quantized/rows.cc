// Conversion to and from quantized numbers; the products of such stand with the other contractions.
//
// Fake quantization, DequantizeLinear(QuantizeLinear(x)), has the gradient that it is trained with:
// dy where x was in the range of the integers, 0 where it was clipped, by the type or by a Clip
// of the integers in between (PyTorch's quant_min and quant_max). Scale and zero point have
// none, as in PyTorch's fake_quantize.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/families.h"
#include "compiler/ops/rule_support.h"

namespace halfnote {
namespace {

using enum PrecisionClass;

constexpr std::string_view kForward = "QuantizeLinear";
constexpr std::string_view kQuantized = "the operands or results are quantized: no gradient exists";

/// The numbers that a type holds.
struct IntegerRange {
  double lowest = 0, highest = 0;
};

IntegerRange integer_range(DType dtype) {
  const double codes = std::ldexp(1.0, bits_of(dtype));
  switch (dtype) {
    case DType::kI2:
    case DType::kI4:
    case DType::kI8:
    case DType::kI16:
      return {-codes / 2, codes / 2 - 1};
    case DType::kU2:
    case DType::kU4:
    case DType::kU8:
    case DType::kU16:
      return {0, codes - 1};
    default:
      throw Error(ErrorCode::kUnsupported, std::string(kQuantized))
          .expected("numbers of 2 to 16 bits", std::string(short_name(dtype)));
  }
}

/// The codes that reach the op: those of their type, less what stands between it and
/// QuantizeLinear (OperatorRow::saturates) cuts off.
IntegerRange range_of_codes(const Graph& graph, ValueId codes) {
  IntegerRange range = integer_range(graph.value(codes).type.dtype);
  for (NodeId node = graph.value(codes).producer; graph.node(node).op != kForward;
       node = graph.value(graph.input(node, 0)).producer) {
    const ValueId low = graph.input(node, 1), high = graph.input(node, 2);
    if (low.valid()) range.lowest = std::max(range.lowest, graph.constant(low)->at_as_double(0));
    if (high.valid())
      range.highest = std::min(range.highest, graph.constant(high)->at_as_double(0));
  }
  return range;
}

/// A scale or zero point of one number, or of one for each slice of `x` along the axis.
Expr along_axis(Expr parameter, Expr x, const Attributes& attributes) {
  if (parameter.rank() == 0) return parameter;
  if (parameter.rank() == 1 && parameter.shape()[0].is(1)) return squeeze(parameter, {0});
  const bool of_blocks = x.rank() == 1 && attributes.get_int("block_size", 0) > 0;
  if (parameter.rank() != 1 || of_blocks) {
    throw Error(ErrorCode::kUnsupported, "not in this release: gradient of blocked quantization")
        .expected("a scale for the tensor or for an axis", to_string(parameter.type()));
  }
  std::vector<int64_t> others = axes_between(0, x.rank());
  const int64_t axis = attributes.get_int("axis", 1);
  std::erase(others, axis < 0 ? axis + x.rank() : axis);
  return unsqueeze(parameter, others);
}

/// Operand 3 is what was quantized, where it is known: see OperatorRow::undoes.
std::vector<Expr> dequantize_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const size_t operands = rule.graph().inputs(rule.node).size();
  if (rule.inputs.size() <= operands) throw Error(ErrorCode::kUnsupported, std::string(kQuantized));
  std::vector<Expr> results(rule.inputs.size(), b.none());
  if (!rule.needed[operands]) return results;
  const Expr x = rule.inputs[operands], codes = rule.inputs[0];
  const IntegerRange range = range_of_codes(rule.graph(), codes.id);
  const Expr scale = along_axis(b.cast(rule.inputs[1], x.dtype()), x, rule.attributes());
  Expr code = b.op("Round", {x / scale});
  if (operands > 2 && rule.inputs[2].valid()) {
    code = code + along_axis(b.cast(rule.inputs[2], x.dtype()), x, rule.attributes());
  }
  const Expr inside =
      b.op("And", {b.op("GreaterOrEqual", {code, b.scalar(x.dtype(), range.lowest)}),
                   b.op("LessOrEqual", {code, b.scalar(x.dtype(), range.highest)})});
  results[operands] = mask_zero(inside, b.cast(rule.grads[0], x.dtype()));
  return results;
}

}  // namespace

std::vector<OperatorRow> quantized_rows() {
  return {
      {.name = "DequantizeLinear",
       .precision = kOpaque,
       .legality = {19, 19},
       .gradient = dequantize_gradient,
       .undoes = kForward,
       .note = "its scale keeps its type; the gradient goes straight through QuantizeLinear"},
      {.name = "DynamicQuantizeLinear", .precision = kOpaque, .no_gradient = kQuantized},
      {.name = kForward,
       .precision = kOpaque,
       .legality = {19, 19},
       .no_gradient = kQuantized,
       .note = "its scale keeps its type"},
  };
}

}  // namespace halfnote
