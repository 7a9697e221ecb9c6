// How a gradient rule changes its forward node: asks for an optional output, or replaces the node.
#include "base/error.h"
#include "compiler/ops/operator.h"

namespace halfnote {

namespace {

/// The name of the first result that the node has.
std::string base_name(const Graph& graph, NodeId node) {
  for (ValueId output : graph.outputs(node)) {
    if (output.valid()) return graph.value(output).name;
  }
  return graph.node(node).op;
}

}  // namespace

Expr GradientContext::request_output(size_t index) {
  Graph& g = graph();
  if (outputs.size() <= index) {
    outputs.resize(index + 1, b.none());
    grads.resize(index + 1, b.none());
  }
  if (!outputs[index].valid()) {
    const std::string name = base_name(g, node) + "_" + std::to_string(index);
    outputs[index] = b.value(g.add_node_output(node, index, name));
    infer(g, node);
  }
  return outputs[index];
}

std::vector<Expr> GradientContext::replace_forward(std::string_view op, std::string_view domain,
                                                   Attributes attributes,
                                                   const std::vector<Expr>& new_inputs, int count) {
  Graph& g = graph();
  NodeSpec spec;
  spec.op = op;
  spec.domain = domain;
  spec.attributes = std::move(attributes);
  spec.name = g.node(node).name;
  for (const Expr& input : new_inputs) spec.inputs.push_back(input.id);

  const std::vector<ValueId> old(g.outputs(node).begin(), g.outputs(node).end());
  const std::string base = base_name(g, node);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(base + "_" + std::to_string(i));
  const NodeId made = g.create(std::move(spec), std::move(names), g.before(node));
  g.node(made).role = g.node(node).role;
  g.node(made).precision = g.node(node).precision;
  g.node(made).origin = g.node(node).origin;
  g.node(made).metadata = g.node(node).metadata;
  infer(g, made);

  std::vector<std::pair<ValueId, std::string>> inherited;
  for (size_t i = 0; i < old.size() && i < static_cast<size_t>(count); ++i) {
    if (!old[i].valid()) continue;
    inherited.emplace_back(g.output(made, i), g.value(old[i]).name);
    g.replace_uses(old[i], g.output(made, i));
  }
  g.remove(node);
  for (const auto& [value, name] : inherited) g.rename(value, name);

  node = made;
  outputs.clear();
  for (ValueId output : g.outputs(made)) outputs.push_back(b.value(output));
  grads.resize(outputs.size(), b.none());
  return outputs;
}

}  // namespace halfnote
