#include "passes/train/gradient_path.h"

#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/lower_ops.h"

namespace halfnote {
namespace {

bool may_be_flattened(const Graph& graph, NodeId node) {
  const auto is_container = [&](ValueId value) {
    return value.valid() && !graph.value(value).type.is_tensor() &&
           graph.value(value).type.kind != TypeKind::kUnknown;
  };
  const auto inputs = graph.inputs(node), outputs = graph.outputs(node);
  return !graph.subgraphs(node).empty() ||
         std::any_of(inputs.begin(), inputs.end(), is_container) ||
         std::any_of(outputs.begin(), outputs.end(), is_container);
}

bool reads_shape_only(const Node& node) {
  return node.domain.empty() && (node.op == "Shape" || node.op == "Size");
}

/// Do both nodes read the same scale and zero point?
bool same_parameters(const Graph& graph, NodeId a, NodeId b) {
  const auto of_a = graph.inputs(a), of_b = graph.inputs(b);
  const auto at = [](std::span<const ValueId> inputs, size_t i) {
    return i < inputs.size() ? inputs[i] : ValueId();
  };
  for (size_t i = 1; i < std::max(of_a.size(), of_b.size()); ++i) {
    const ValueId x = at(of_a, i), y = at(of_b, i);
    if (x == y) continue;
    const Tensor* left = x.valid() ? graph.constant(x) : nullptr;
    const Tensor* right = y.valid() ? graph.constant(y) : nullptr;
    if (left == nullptr || right == nullptr || !identical(*left, *right)) return false;
  }
  return graph.node(a).attributes.get_int("axis", 1) == graph.node(b).attributes.get_int("axis", 1);
}

/// What the op that this one undoes was given; invalid where there is no such op.
ValueId quantized_by(const Graph& graph, NodeId node) {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr || row->undoes.empty()) return {};
  const NodeId before = producer(graph, graph.inputs(node)[0]);
  if (!before.valid() || graph.node(before).op != row->undoes) return {};
  if (!same_parameters(graph, before, node)) return {};  // no fake quantization: another number
  return graph.inputs(before)[0];
}

}  // namespace

std::vector<ValueId> operands_of(const Graph& graph, NodeId node) {
  std::vector<ValueId> operands(graph.inputs(node).begin(), graph.inputs(node).end());
  const ValueId through = quantized_by(graph, node);
  if (through.valid()) operands.push_back(through);
  if (graph.subgraphs(node).empty()) return operands;
  for (ValueId capture : captures(graph, node)) operands.push_back(capture);
  return operands;
}

std::vector<ValueId> trainable_initializers(const Graph& graph) {
  std::vector<ValueId> weights;
  for (ValueId value : graph.initializers()) {
    if (graph.value(value).trainable) weights.push_back(value);
  }
  return weights;
}

std::vector<bool> reached_from(const Graph& graph, std::span<const NodeId> nodes,
                               std::span<const ValueId> sources) {
  std::vector<bool> reached(graph.value_count(), false);
  for (ValueId value : sources) reached[value.index] = true;
  for (NodeId node : nodes) {
    bool any = false;
    for (ValueId input : operands_of(graph, node)) any |= input.valid() && reached[input.index];
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

std::vector<NodeId> nodes_between(const Graph& graph, std::span<const NodeId> nodes,
                                  const std::vector<bool>& reached, std::span<const ValueId> ends) {
  std::vector<bool> wanted(graph.value_count(), false);
  for (ValueId end : ends) wanted[end.index] = true;
  std::vector<NodeId> order;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    bool used = false;
    for (ValueId output : graph.outputs(*node)) {
      used |= output.valid() && wanted[output.index] && reached[output.index];
    }
    if (!used) continue;
    order.push_back(*node);
    for (ValueId input : operands_of(graph, *node)) {
      if (input.valid()) wanted[input.index] = true;
    }
  }
  return order;
}

void write_out_derivatives(Graph& graph, const InferNode& infer, std::span<const ValueId> sources,
                           ValueId end) {
  const std::vector<NodeId> nodes = graph.nodes();
  const std::vector<bool> reached = reached_from(graph, nodes, sources);
  write_out_bodies(graph, infer, nodes_between(graph, nodes, reached, {&end, 1}));
}

void add_without_gradient(const Graph& graph, std::span<const NodeId> nodes,
                          UnsupportedOps& missing) {
  for (NodeId id : nodes) {
    const OperatorRow* row = find_operator(graph.node(id));
    if (row == nullptr || row->gradient != nullptr || row->lower != nullptr) continue;
    if (row->body != nullptr) continue;
    if (may_be_flattened(graph, id) || missing.contains(graph, id)) continue;
    missing.add(graph, id, std::string(row->no_gradient));
  }
}

void add_sized_by_values(const Graph& graph, ValueId end, UnsupportedOps& problems) {
  const std::vector<NodeId> nodes = graph.nodes();
  std::vector<bool> of_values(graph.value_count(), false);  // not of constants and shapes alone
  for (ValueId input : graph.inputs(graph.main())) of_values[input.index] = true;
  for (ValueId weight : trainable_initializers(graph)) of_values[weight.index] = true;
  for (NodeId node : nodes) {
    if (reads_shape_only(graph.node(node))) continue;
    bool any = false;
    for (ValueId input : operands_of(graph, node)) any |= input.valid() && of_values[input.index];
    for (ValueId output : graph.outputs(node)) {
      if (output.valid()) of_values[output.index] = any;
    }
  }
  const std::vector<bool> all(graph.value_count(), true);
  for (NodeId node : nodes_between(graph, nodes, all, {&end, 1})) {
    const OperatorRow* row = find_operator(graph.node(node));
    if (row == nullptr || !row->sized_by_values) continue;
    const auto outputs = graph.outputs(node);
    const auto open = [&](ValueId id) {
      return id.valid() && of_values[id.index] && !graph.value(id).type.has_concrete_shape();
    };
    if (!std::any_of(outputs.begin(), outputs.end(), open)) continue;
    problems.add(graph, node, "the values decide how many elements it gives");
  }
}

}  // namespace halfnote
