// absorb_casts: a sum in f32 of 16-bit elements (the gradient of a bias) reads these themselves.
//
//   c = Cast <f32> (x)
//   y = ReduceSum (c, axes)    ──▶   y = ai.halfnote.ReduceSum <axes, out_dtype = f32> (x)
//
// Exact. Leaves alone: axes that are computed, sums that reduce nothing, bodies.
#include "passes/device/absorb_casts.h"

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// The 16-bit value behind the operand of a sum in f32; invalid if the sum shall stay.
ValueId narrow_operand(const Graph& graph, NodeId sum) {
  const Node& node = graph.node(sum);
  if (node.op != "ReduceSum" || !node.domain.empty() || node.region != graph.main()) return {};
  const ValueId axes = graph.input(sum, 1);
  if (axes.valid() && graph.constant(axes) == nullptr) return {};
  const bool all = !axes.valid() || graph.constant(axes)->size() == 0;
  if (all && node.attributes.get_int("noop_with_empty_axes", 0) != 0) return {};
  const NodeId cast = producer(graph, graph.input(sum, 0));
  if (!cast.valid() || !is_cast(graph.node(cast))) return {};
  const ValueId narrow = graph.input(cast, 0);
  const bool widens = is_16bit_float(graph.value(narrow).type.dtype) &&
                      graph.value(graph.output(cast)).type.dtype == DType::kF32;
  return widens ? narrow : ValueId{};
}

void read_narrow(Graph& graph, NodeId sum, ValueId narrow) {
  const ValueId wide = graph.input(sum, 0), axes = graph.input(sum, 1);
  Node& node = graph.node(sum);
  node.attributes.set("axes",
                      axes.valid() ? graph.constant(axes)->to_ints() : std::vector<int64_t>{});
  node.attributes.set("out_dtype", static_cast<int64_t>(DType::kF32));
  node.attributes.erase("noop_with_empty_axes");
  node.domain = kHalfnoteDomain;
  graph.resize_inputs(sum, 1);
  graph.set_input(sum, 0, narrow);
  const NodeId cast = graph.value(wide).producer;
  if (!graph.has_uses(wide)) graph.remove(cast);
}

}  // namespace

bool absorb_casts(Graph& graph, PassContext&) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    if (!graph.node(node).alive) continue;
    const ValueId narrow = narrow_operand(graph, node);
    if (!narrow.valid()) continue;
    read_narrow(graph, node, narrow);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
