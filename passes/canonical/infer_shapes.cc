#include "passes/canonical/infer_shapes.h"

#include "base/error.h"
#include "compiler/onnx/schema.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

Place place_of(const Node& node) {
  return {.node = node.name, .op = node.domain.empty() ? node.op : node.domain + "." + node.op};
}

void set_types(Graph& graph, NodeId node, const std::vector<ValueType>& types) {
  const auto outputs = graph.outputs(node);
  for (size_t i = 0; i < outputs.size() && i < types.size(); ++i) {
    if (outputs[i].valid()) graph.value(outputs[i]).type = types[i];
  }
}

}  // namespace

void infer_node(Graph& graph, NodeId node) {
  const Node& data = graph.node(node);
  const OperatorRow* row = find_operator(data);
  try {
    const bool ruled = row != nullptr && row->infer != nullptr;
    // A rule of an ONNX op knows more than its schema does.
    if (!ruled || row->domain.empty()) infer_with_schema(graph, node, kOpsetVersion, infer_node);
    if (ruled) set_types(graph, node, row->infer(graph, node));
  } catch (Error& error) {
    throw error.within(place_of(graph.node(node)));
  }
}

bool infer_graph(Graph& graph) {
  bool changed = false;
  for (NodeId node : graph.all_nodes()) {
    std::vector<ValueType> before;
    for (ValueId output : graph.outputs(node)) {
      before.push_back(output.valid() ? graph.value(output).type : ValueType{});
    }
    infer_node(graph, node);
    const auto outputs = graph.outputs(node);
    for (size_t i = 0; i < outputs.size(); ++i) {
      changed |= outputs[i].valid() && !(graph.value(outputs[i]).type == before[i]);
    }
  }
  return changed;
}

/// The pass: types for every value. Exact. Leaves alone: what is declared and as precise already.
bool infer_shapes(Graph& graph, PassContext&) { return infer_graph(graph); }

}  // namespace halfnote
