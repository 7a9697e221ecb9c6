// Range: constant operands that no sequence of numbers can be made of.
#include <array>
#include <cmath>
#include <string>

#include "base/error.h"
#include "compiler/ops/movement/parts.h"

namespace halfnote::movement {

std::vector<ValueType> infer_range(const Graph& graph, NodeId node) {
  constexpr std::array<const char*, 3> kOperands = {"start", "limit", "delta"};
  for (size_t i = 0; i < kOperands.size(); ++i) {
    const ValueId operand = graph.input(node, i);
    const Tensor* number = operand.valid() ? graph.constant(operand) : nullptr;
    if (number == nullptr || number->size() != 1) continue;
    const double value = number->at_as_double(0);
    const bool is_delta = i == 2;
    if (std::isfinite(value) && (!is_delta || value != 0)) continue;
    throw Error(ErrorCode::kModel, std::string("the ") + kOperands[i] + " \"" +
                                       graph.value(operand).name + "\" makes no range")
        .expected(is_delta ? "a finite number other than 0" : "a finite number",
                  std::isfinite(value) ? "0" : std::to_string(value));
  }
  return {graph.value(graph.output(node)).type};
}

}  // namespace halfnote::movement
