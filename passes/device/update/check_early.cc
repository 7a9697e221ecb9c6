// check_early: a large gradient is judged right behind the node that makes it, while it is in the
// cache, not with all others at the end of the step.
//
//   g = MatMul (…)  …  h = MatMul (…)  …  f = AllFinite (g, h, b)
//       ──▶
//   g = MatMul (…)  i = AllFinite (g)  …  h = MatMul (…)  j = AllFinite (h)  …
//   f = AllFinite (i, j, b)
//
// Exact: an answer that is false stays false. Leaves alone: small gradients, where the call costs
// as much as it saves, and those that are not results of the main region.
#include "passes/device/update/check_early.h"

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/live_ranges.h"

namespace halfnote {
namespace {

constexpr int64_t kLargeGradient = int64_t{1} << 18;  // bytes

NodeId check_behind(Graph& graph, NodeId maker, NodeId check, ValueId gradient) {
  NodeSpec spec;
  spec.op = graph.node(check).op;
  spec.domain = graph.node(check).domain;
  spec.name = graph.unique_name(graph.value(gradient).name + ".finite");
  spec.inputs = {gradient};
  const std::string name = spec.name;
  const NodeId early = graph.create(std::move(spec), {name}, graph.after(maker));
  graph.node(early).role = graph.node(check).role;
  graph.node(early).precision = graph.node(check).precision;
  graph.value(graph.output(early)).type = graph.value(graph.output(check)).type;
  return early;
}

bool split(Graph& graph, NodeId check) {
  bool changed = false;
  for (size_t i = 0; i < graph.inputs(check).size(); ++i) {
    const ValueId gradient = graph.input(check, i);
    const NodeId maker = producer(graph, gradient);
    if (!maker.valid() || graph.node(maker).region != graph.main()) continue;
    if (bytes_of(graph.value(gradient).type) < kLargeGradient || graph.next(maker) == check)
      continue;
    graph.set_input(check, i, graph.output(check_behind(graph, maker, check, gradient)));
    changed = true;
  }
  return changed;
}

}  // namespace

bool check_early(Graph& graph, PassContext&) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    const Node& data = graph.node(node);
    if (data.domain != kHalfnoteDomain || data.op != "AllFinite") continue;
    if (graph.inputs(node).size() > 1) changed |= split(graph, node);
  }
  return changed;
}

}  // namespace halfnote
