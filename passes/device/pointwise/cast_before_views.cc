// cast_before_views: a Cast behind a Reshape of an elementwise result goes in front of the Reshape,
// where fuse_pointwise makes it part of the node that computes the result.
//
//   d = Mul(a, b)  r = Reshape(d)  c = Cast(r)   ──▶   d = Mul(a, b)  e = Cast(d)  c = Reshape(e)
//
// Exact. Leaves alone: casts that feed elementwise nodes (these two are fused already), results of
// the graph, bodies.
#include "passes/device/pointwise/cast_before_views.h"

#include <algorithm>

#include "passes/device/pointwise/fuse_pointwise.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// The Reshape in front of the cast if the cast shall change places with it; else invalid.
NodeId view_before(const Graph& graph, NodeId cast) {
  const Node& node = graph.node(cast);
  if (node.op != "Cast" || !node.domain.empty() || pointwise_row_of(graph, cast) == nullptr)
    return {};
  const NodeId view = graph.value(graph.input(cast, 0)).producer;
  if (!view.valid() || graph.node(view).op != "Reshape" || !graph.node(view).domain.empty())
    return {};
  const NodeId maker = graph.value(graph.input(view, 0)).producer;
  if (!maker.valid() || pointwise_row_of(graph, maker) == nullptr) return {};
  if (graph.node(maker).region != node.region || graph.node(view).region != node.region) return {};
  const ValueId result = graph.output(cast);
  const bool feeds_elementwise = std::ranges::any_of(graph.uses(result), [&](const Use& use) {
    return use.by_node() && pointwise_row_of(graph, use.node()) != nullptr;
  });
  return feeds_elementwise || is_region_output(graph, result) ? NodeId{} : view;
}

/// A node as `like`, with another operand in front.
ValueId make_like(Graph& graph, NodeId like, std::vector<ValueId> inputs, ValueType type,
                  InsertPoint at) {
  NodeSpec spec;
  spec.op = graph.node(like).op;
  spec.attributes = graph.node(like).attributes;
  spec.inputs = std::move(inputs);
  spec.name = graph.unique_name(graph.label(like) + ".swapped");
  const std::string name = spec.name;
  const NodeId node = graph.create(std::move(spec), {name}, at);
  graph.node(node).role = graph.node(like).role;
  graph.node(node).precision = graph.node(like).precision;
  graph.node(node).origin = graph.node(like).origin;
  graph.value(graph.output(node)).type = std::move(type);
  return graph.output(node);
}

void swap_cast(Graph& graph, NodeId cast, NodeId view) {
  const ValueId source = graph.input(view, 0), result = graph.output(cast);
  ValueType narrow = graph.value(source).type;
  narrow.dtype = graph.value(result).type.dtype;
  const ValueId early = make_like(graph, cast, {source}, std::move(narrow), graph.before(view));
  const ValueId late = make_like(graph, view, {early, graph.input(view, 1)},
                                 graph.value(result).type, graph.before(cast));
  for (const ValueId value : {early, late})
    graph.value(value).scale_power = graph.value(result).scale_power;
  graph.replace_uses(result, late);
  graph.remove(cast);
}

}  // namespace

bool cast_before_views(Graph& graph, PassContext&) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    const NodeId view = view_before(graph, node);
    if (!view.valid()) continue;
    swap_cast(graph, node, view);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
