// Conversion to and from quantized numbers; the products of such stand with the other contractions.
#include "compiler/ops/families.h"

namespace halfnote {
namespace {

using enum PrecisionClass;

constexpr std::string_view kQuantized = "the operands or results are quantized: no gradient exists";

}  // namespace

std::vector<OperatorRow> quantized_rows() {
  return {
      {.name = "DequantizeLinear",
       .precision = kOpaque,
       .legality = {19, 19},
       .no_gradient = kQuantized,
       .note = "its scale keeps its type"},
      {.name = "DynamicQuantizeLinear", .precision = kOpaque, .no_gradient = kQuantized},
      {.name = "QuantizeLinear",
       .precision = kOpaque,
       .legality = {19, 19},
       .no_gradient = kQuantized,
       .note = "its scale keeps its type"},
  };
}

}  // namespace halfnote
