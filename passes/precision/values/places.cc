#include "passes/precision/values/places.h"

#include <string>

#include "base/ops/pointwise.h"
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote {

std::vector<ValueId> places_of(const Graph& graph, NodeId node) {
  std::vector<ValueId> places;
  const OperatorRow* row = find_operator(graph.node(node));
  const auto inputs = graph.inputs(node);
  for (size_t i = 0; row != nullptr && i < inputs.size() && i < 32; ++i) {
    if ((row->place_inputs >> i & 1u) != 0) places.push_back(inputs[i]);
  }
  for (const auto& [key, slot] : graph.node(node).metadata) {
    if (key == kReadsPlacesKey) places.push_back(graph.input(node, std::stoul(slot)));
  }
  return places;
}

bool makes_indices(const Graph& graph, NodeId node) {
  return is_cast(graph.node(node)) && graph.input(node, 0).valid() &&
         is_integer(graph.value(graph.output(node)).type.dtype);
}

bool is_read_by_element(const Graph& graph, NodeId node) {
  const auto is_by_element = [&](NodeId id) {
    const Node& one = graph.node(id);
    const PointwiseRow* pointwise = find_pointwise(one.domain, one.op);
    if (pointwise != nullptr) return pointwise->types != PointwiseTypes::kSum;
    const OperatorRow* row = find_operator(one);
    return is_cast(one) || (row != nullptr && row->precision == PrecisionClass::kClear);
  };
  if (!is_by_element(node)) return false;
  for (const ValueId output : graph.outputs(node)) {
    if (!output.valid()) continue;
    for (const Use& use : graph.uses(output)) {
      if (!use.by_node() || graph.node(use.node()).role != Role::kForward) continue;
      if (!is_by_element(use.node())) return false;
    }
  }
  return true;
}

}  // namespace halfnote
