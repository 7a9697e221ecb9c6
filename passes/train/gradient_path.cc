#include "passes/train/gradient_path.h"

#include "compiler/ops/operator.h"

namespace halfnote {

std::vector<bool> reached_from_weights(const Graph& graph) {
  std::vector<bool> reached(graph.value_count(), false);
  for (ValueId value : graph.initializers()) reached[value.index] = graph.value(value).trainable;
  for (NodeId node : graph.nodes()) {
    bool any = false;
    for (ValueId input : graph.inputs(node)) any |= input.valid() && reached[input.index];
    // A capture inside a subgraph counts as an input of the node that owns it.
    for (RegionId region : graph.subgraphs(node)) {
      for (NodeId inner : graph.nodes(region)) {
        for (ValueId input : graph.inputs(inner)) any |= input.valid() && reached[input.index];
      }
    }
    if (!any) continue;
    for (ValueId output : graph.outputs(node)) {
      if (!output.valid()) continue;
      // What is no tensor (a sequence) may hold floats.
      const ValueType& type = graph.value(output).type;
      const bool unknown = !type.is_tensor() || type.dtype == DType::kUndefined;
      reached[output.index] = unknown || is_float(type.dtype);
    }
  }
  return reached;
}

std::vector<NodeId> nodes_between(const Graph& graph, const std::vector<bool>& reached,
                                  std::span<const ValueId> ends) {
  std::vector<bool> wanted(graph.value_count(), false);
  for (ValueId end : ends) wanted[end.index] = true;
  std::vector<NodeId> order;
  std::vector<NodeId> nodes = graph.nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    bool used = false;
    for (ValueId output : graph.outputs(*node)) {
      used |= output.valid() && wanted[output.index] && reached[output.index];
    }
    if (!used) continue;
    order.push_back(*node);
    for (ValueId input : graph.inputs(*node)) {
      if (input.valid()) wanted[input.index] = true;
    }
  }
  return order;
}

void add_without_gradient(const Graph& graph, std::span<const NodeId> nodes, int64_t opset,
                          UnsupportedOps& missing) {
  for (NodeId id : nodes) {
    const OperatorRow* row = find_operator(graph.node(id));
    if (row == nullptr || row->gradient != nullptr || row->lower != nullptr) continue;
    if (missing.contains(graph, id)) continue;
    missing.add(graph, id, opset, std::string(row->no_gradient));
  }
}

}  // namespace halfnote
