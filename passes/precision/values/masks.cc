#include "passes/precision/values/masks.h"

#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote {

FedValues::FedValues(const Graph& graph)
    : fed_(graph.value_count(), false), constant_(graph.value_count(), false) {
  for (ValueId input : graph.inputs()) fed_[input.index] = is_float_value(graph, input);
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    for (ValueId value : graph.initializers(RegionId{i})) {
      constant_[value.index] = graph.constant(value) != nullptr;
    }
  }
  for (NodeId node : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(node));
    if (row == nullptr || row->precision == PrecisionClass::kAllow) continue;
    if (row->purity != Purity::kPure || !graph.subgraphs(node).empty()) continue;
    bool fed = false, constant = true, other = false, floats = false;
    for (ValueId input : graph.inputs(node)) {
      if (!is_float_value(graph, input)) continue;
      floats = true;
      fed |= has(input);
      constant &= constant_[input.index];
      other |= !has(input) && !constant_[input.index];
    }
    // A Cast of an integer or a bool mask.
    const ValueId first = graph.input(node, 0);
    if (!floats && first.valid() && graph.constant(first) == nullptr) {
      fed = true;
      constant = false;
    }
    for (ValueId output : graph.outputs(node)) {
      if (!is_float_value(graph, output)) continue;
      fed_[output.index] = fed && !other;
      constant_[output.index] = constant;
    }
  }
}

bool FedValues::adds(const Graph& graph, NodeId node) const {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr || row->scale != ScaleRule::kSame) return false;
  bool fed = false, other = false;
  for (ValueId input : graph.inputs(node)) {
    if (!is_float_value(graph, input)) continue;
    fed |= has(input);
    other |= !has(input) && !constant_[input.index];
  }
  return fed && other;
}

bool is_softmax(const Node& node) {
  return node.domain.empty() && (node.op == "Softmax" || node.op == "LogSoftmax");
}

}  // namespace halfnote
