// mend_constants: takes away constants that 16 bits do not hold, where that is exact.
//
//   y = Clip (x, 0, 3.4028235e38)     ──▶   y = Clip (x, 0)
//   y = Max (x, -3.4028235e38)        ──▶   y = x
//
// A bound at the largest finite f32 bounds nothing that is finite: frameworks write it for "no
// bound". Exact for every finite x and for NaN; an x that is infinite stays infinite, which the
// finite check of the gradients then sees, instead of becoming 3.4e38. Leaves alone: every other
// constant, whether it fits or not: assign_precision keeps its node in f32 and says so; everything
// under --precision fp32; bounds that are computed.
#include <cmath>
#include <limits>

#include "compiler/ir/replace.h"
#include "passes/passes.h"
#include "passes/precision/values/constants.h"

namespace halfnote {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

/// Are all elements of the constant `bound`, or further out?
bool is_no_bound(const Graph& graph, ValueId value, float bound) {
  const Tensor* tensor = graph.constant(value);
  if (tensor == nullptr || tensor->dtype() != DType::kF32 || tensor->size() == 0) return false;
  for (const float x : tensor->data<float>()) {
    if (!(bound > 0 ? x >= bound : x <= bound)) return false;
  }
  return true;
}

std::string dropped(const Graph& graph, ValueId bound) {
  return "the bound \"" + graph.value(bound).name +
         "\" is the largest f32: taken away, exact for every finite number";
}

bool mend_clip(Graph& graph, NodeId node, PassContext& context) {
  bool changed = false;
  for (const auto& [slot, bound] : {std::pair{size_t{1}, -kMax}, {size_t{2}, kMax}}) {
    const ValueId value = graph.input(node, slot);
    if (!value.valid() || !is_no_bound(graph, value, bound)) continue;
    context.note(graph.node(node).name, dropped(graph, value));
    graph.set_input(node, slot, ValueId{});
    changed = true;
  }
  if (changed) graph.resize_inputs(node, graph.inputs(node).size());
  return changed;
}

/// Max and Min of two operands, one of them a scalar that bounds nothing.
bool mend_extremum(Graph& graph, NodeId node, PassContext& context) {
  if (graph.inputs(node).size() != 2) return false;
  const float bound = graph.node(node).op == "Max" ? -kMax : kMax;
  for (size_t slot = 0; slot < 2; ++slot) {
    const ValueId value = graph.input(node, slot), other = graph.input(node, 1 - slot);
    if (!is_no_bound(graph, value, bound) || graph.constant(value)->size() != 1) continue;
    const ValueType& from = graph.value(other).type;
    const ValueType& to = graph.value(graph.output(node)).type;
    if (!from.shape || !to.shape || from.shape->size() != to.shape->size()) continue;
    context.note(graph.node(node).name, dropped(graph, value));
    Builder b(graph, graph.before(node), context.infer);
    b.set_role(graph.node(node).role);
    const Expr same = b.op("Identity", {b.value(other)});
    graph.node(b.last()).name = graph.node(node).name;
    take_place(graph, graph.output(node), same.id);
    graph.remove(node);
    return true;
  }
  return false;
}

}  // namespace

bool mend_constants(Graph& graph, PassContext& context) {
  if (context.options.policy.dtype == DType::kF32) return false;
  bool changed = false;
  for (NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    if (!node.domain.empty()) continue;
    if (node.op == "Clip") changed |= mend_clip(graph, id, context);
    if (node.op == "Max" || node.op == "Min") changed |= mend_extremum(graph, id, context);
  }
  return changed;
}

}  // namespace halfnote
