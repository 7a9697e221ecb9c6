#include "passes/train/gradient_path.h"

#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"
#include "compiler/ops/rule_support.h"
#include "passes/canonical/lower_ops.h"

namespace halfnote {
namespace {

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

/// Does the node only limit its operand to a range that is known?
bool saturates(const Graph& graph, NodeId node) {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr || !row->saturates) return false;
  const auto inputs = graph.inputs(node).subspan(1);
  return std::all_of(inputs.begin(), inputs.end(), [&](ValueId bound) {
    return !bound.valid() || graph.constant(bound) != nullptr;
  });
}

/// The node that this one undoes (OperatorRow::undoes), whatever their parameters; behind those
/// that only limit its result. Invalid where there is none.
NodeId undone_by(const Graph& graph, NodeId node) {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr || row->undoes.empty()) return {};
  NodeId before = producer(graph, graph.input(node, 0));
  while (before.valid() && saturates(graph, before)) {
    before = producer(graph, graph.input(before, 0));
  }
  const bool found = before.valid() && graph.node(before).op == row->undoes &&
                     graph.node(before).domain == row->domain;
  return found ? before : NodeId();
}

/// What the op that this one undoes was given; invalid where there is no such op.
ValueId quantized_by(const Graph& graph, NodeId node) {
  const NodeId before = undone_by(graph, node);
  // With other parameters it is no fake quantization, but another number.
  if (!before.valid() || !same_parameters(graph, before, node)) return {};
  return graph.input(before, 0);
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

bool has_known_types(const Graph& graph, NodeId node) {
  const auto known = [&](ValueId value) {
    if (!value.valid()) return true;
    const ValueType& type = graph.value(value).type;
    return type.is_tensor() && type.shape && type.dtype != DType::kUndefined;
  };
  return std::ranges::all_of(graph.inputs(node), known) &&
         std::ranges::all_of(graph.outputs(node), known);
}

NodeId undone_otherwise(const Graph& graph, NodeId node) {
  const NodeId before = undone_by(graph, node);
  return before.valid() && !same_parameters(graph, before, node) ? before : NodeId();
}

std::vector<ValueId> trainable_initializers(const Graph& graph) {
  std::vector<ValueId> weights;
  for (ValueId value : graph.initializers()) {
    if (graph.value(value).trainable) weights.push_back(value);
  }
  return weights;
}

bool reads_shapes_only(const Node& node) {
  if (reads_shape_only(node)) return true;
  const OperatorRow* row = find_operator(node);
  return row != nullptr && row->gradient == no_values;
}

bool carries_floats(const ValueType& type) {
  return !type.is_tensor() || type.dtype == DType::kUndefined || is_float(type.dtype);
}

std::vector<bool> reached_from(const Graph& graph, std::span<const NodeId> nodes,
                               std::span<const ValueId> sources, Reach reach) {
  std::vector<bool> reached(graph.value_count(), false);
  for (ValueId value : sources) reached[value.index] = true;
  for (NodeId node : nodes) {
    if (reach == Reach::kAllTypes && reads_shapes_only(graph.node(node))) continue;
    bool any = false;
    for (ValueId input : operands_of(graph, node)) any |= input.valid() && reached[input.index];
    if (!any) continue;
    for (ValueId output : graph.outputs(node)) {
      if (!output.valid()) continue;
      reached[output.index] = reach == Reach::kAllTypes || carries_floats(graph.value(output).type);
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

std::vector<bool> wanted_by(const Graph& graph, std::span<const NodeId> nodes,
                            std::span<const ValueId> ends) {
  std::vector<bool> wanted(graph.value_count(), false);
  for (ValueId end : ends) wanted[end.index] = true;
  for (NodeId node : nodes) {
    for (ValueId input : operands_of(graph, node)) {
      if (input.valid()) wanted[input.index] = true;
    }
  }
  return wanted;
}

void write_out_derivatives(Graph& graph, const InferNode& infer, std::span<const ValueId> sources,
                           ValueId end) {
  const std::vector<NodeId> nodes = graph.nodes();
  const std::vector<bool> reached = reached_from(graph, nodes, sources);
  write_out_bodies(graph, infer, nodes_between(graph, nodes, reached, {&end, 1}));
}

}  // namespace halfnote
