// Three kinds of floats depend on no float of the data:
//
//   Cast (int64 ids) …     a position: whole numbers of any size
//   Cast (bool mask) …     whole numbers that fit 16 bits, until they are summed (CumSum of a mask)
//   tables                 constants, and weights that are a line of numbers: frequencies that a
//                          file does not declare as buffers, centres that are learned
//
// What is computed of positions and tables stays a position (distances, angles, their Sin and Cos)
// until it meets data: there it is rounded as all else is. A matrix ends it too: integers that a
// layer multiplies are features.
#include "passes/precision/values/positions.h"

#include <algorithm>

#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

/// Is it at most a line of numbers?
bool is_line(const Shape& shape) {
  return std::count_if(shape.begin(), shape.end(), [](int64_t n) { return n > 1; }) <= 1;
}

bool is_matrix(const Graph& graph, ValueId value) {
  const Tensor* tensor = graph.constant(value);
  return tensor != nullptr && !is_line(tensor->shape());
}

bool in_slots(uint32_t slots, size_t i) { return i < 32 && (slots >> i & 1u) != 0; }

}  // namespace

ComputedPositions::ComputedPositions(const Graph& graph)
    : levels_(graph.value_count(), Level::kData), computes_(graph.node_capacity(), false) {
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    for (ValueId value : graph.initializers(RegionId{i})) {
      const bool constant = graph.constant(value) != nullptr;
      if (constant || is_line(graph.value(value).tensor.shape())) {
        levels_[value.index] = Level::kConstant;
      }
    }
  }
  for (NodeId node : graph.all_nodes()) {
    const Level level = level_of(graph, node);
    const auto inputs = graph.inputs(node);
    computes_[node.index] =
        level == Level::kPosition && std::any_of(inputs.begin(), inputs.end(), [&](ValueId input) {
          return is_float_value(graph, input) && levels_[input.index] == Level::kPosition;
        });
    for (ValueId output : graph.outputs(node)) {
      if (is_float_value(graph, output)) levels_[output.index] = level;
    }
  }
}

ComputedPositions::Level ComputedPositions::level_of(const Graph& graph, NodeId node) const {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr || row->purity != Purity::kPure) return Level::kData;
  if (!graph.subgraphs(node).empty()) return Level::kData;
  bool reads_floats = false;
  Level level = Level::kConstant;
  for (ValueId input : graph.inputs(node)) {
    if (!is_float_value(graph, input)) continue;
    reads_floats = true;
    const Level read = levels_[input.index];
    if (read == Level::kData) return Level::kData;
    if (row->precision == PrecisionClass::kAllow && is_matrix(graph, input)) return Level::kData;
    level = std::max(level, read);
  }
  if (!reads_floats) return of_integers(graph, node);
  const bool sums = row->precision == PrecisionClass::kFp32;
  return level == Level::kSmall && sums ? Level::kPosition : level;
}

/// Of a node without float operands: by the integers that it reads, but for sizes.
ComputedPositions::Level ComputedPositions::of_integers(const Graph& graph, NodeId node) const {
  const OperatorRow* row = find_operator(graph.node(node));
  Level level = Level::kConstant;
  const auto inputs = graph.inputs(node);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].valid() || in_slots(row->size_inputs | row->plan_inputs, i)) continue;
    const bool wide = size_of(graph.value(inputs[i]).type.dtype) > 1;
    level = std::max(level, wide ? Level::kPosition : Level::kSmall);
  }
  return level;
}

}  // namespace halfnote
