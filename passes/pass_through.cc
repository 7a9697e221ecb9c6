#include "passes/pass_through.h"

#include <algorithm>

namespace halfnote {

bool is_region_output(const Graph& graph, ValueId value) {
  const auto uses = graph.uses(value);
  return std::any_of(uses.begin(), uses.end(),
                     [](const Use& use) { return use.kind == UseKind::kRegionOutput; });
}

void pass_through(Graph& graph, NodeId node) {
  const ValueId result = graph.output(node);
  const ValueId source = graph.input(node, 0);
  const bool named = is_region_output(graph, result);
  const Value& value = graph.value(source);
  const bool bears_names = value.kind == ValueKind::kResult &&
                           value.region == graph.value(result).region &&
                           !is_region_output(graph, source);
  if (named && !bears_names) {
    graph.node(node).op = "Identity";
    graph.node(node).attributes = {};
    return;
  }
  const std::string name = graph.value(result).name;
  graph.replace_uses(result, source);
  graph.remove(node);
  if (named) graph.rename(source, name);
}

void expand_into(Graph& graph, NodeId node, const InferNode& infer,
                 const std::function<Expr(Builder&)>& build) {
  const NodeId before = graph.prev(node);
  Builder builder(graph, graph.before(node), infer);
  builder.set_role(graph.node(node).role);
  builder.set_origin(graph.node(node).origin);
  builder.set_prefix(graph.label(node) + "/");
  const Expr result = build(builder);
  NodeId made = before.valid() ? graph.next(before) : graph.first(graph.node(node).region);
  for (; made != node; made = graph.next(made)) {
    graph.node(made).precision = graph.node(node).precision;
  }
  const ValueId replaced = graph.output(node);
  const bool named = is_region_output(graph, replaced);
  const std::string name = graph.value(replaced).name;
  graph.replace_uses(replaced, result.id);
  graph.remove(node);
  if (named) graph.rename(result.id, name);
}

}  // namespace halfnote
