#include "passes/precision/values/places.h"

#include <string>

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
  if (is_cast(graph.node(node)) && is_integer(graph.value(graph.output(node)).type.dtype))
    places.push_back(inputs[0]);
  return places;
}

}  // namespace halfnote
