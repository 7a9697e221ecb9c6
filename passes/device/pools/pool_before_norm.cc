// pool_before_norm: a BatchNormalization in front of a MaxPool normalizes what the pool leaves, and
// its gradient gathers dY from the taps: nothing of the size of X is written but its gradient.
//
//   n, …, m, i = ai.halfnote.BatchNormalization <…> (x, s, b, …)
//   y, taps = ai.halfnote.MaxPool <…> (n)
//   g = MaxPoolTapsGrad (d, taps, shape)
//   dx, ds, db = ai.halfnote.BatchNormalizationGrad (g, x, s, m, i, , , b?)
//     ──▶   …, m, i = ai.halfnote.BatchNormalization (x, s, b, …)         the statistics alone
//           p, taps = ai.halfnote.MaxPool (x, s)                  the largest of sign(s)·x, as x
//           y = cast ((p − m)·i·s + b), Relu?                     elementwise nodes, one kernel
//           , ds, db, e = ai.halfnote.BatchNormalizationGrad (d, p, s, m, i, , , b?)
//           dx = NormalizedMaxPoolGrad (e, taps, x, s, m, i, ds, db)
//
// A normalization is a line for each channel, which rises or falls as s says, and rounding keeps
// the order: y is the same but for roundings in f32. Where two elements of a window are one number
// when they are normalized and rounded, the gradient goes to the larger one, not to the first one.
// dY is not rounded where windows meet, before dX is made of it. Leaves alone: norms with a
// residual or signs of Y, or that others read; gradients of sums; other than 16-bit tensors; pools
// that leave more than half, or of which a window may lie in the padding alone; bodies.
#include "passes/device/pools/pool_before_norm.h"

#include <algorithm>

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/rule_support.h"
#include "passes/device/norms/parts.h"
#include "passes/device/pools/windows.h"

namespace halfnote {
namespace {

// Places of operands and results (docs/operators.md).
constexpr size_t kNormOperands = 5, kNormResults = 5, kMean = 3, kInvStd = 4;
constexpr size_t kGradBias = 7, kGradSum = 3, kTaps = 1;

struct NormedPool {
  NodeId norm, pool, pool_grad, norm_grad;
  bool relu = false;
};

bool has_relu(const Graph& graph, NodeId node) {
  return graph.node(node).attributes.get_string("activation", "") == "Relu";
}

/// Half of X at most, of 16 bits, in shapes that are known.
bool is_worthwhile(const Graph& graph, ValueId x, ValueId y) {
  const auto large = known_shape(graph, x), small = known_shape(graph, y);
  return large && small && large->size() >= 3 && is_16bit_float(graph.value(x).type.dtype) &&
         element_count(*small) > 0 && element_count(*large) / element_count(*small) >= 2;
}

/// The only one who reads the gradient of the pool: that of the norm, of this dY alone, by the same
/// operands and statistics.
bool find_gradient(const Graph& graph, NormedPool& found) {
  const ValueId dy = graph.output(found.pool_grad);
  found.norm_grad = only_user(graph, dy);
  if (!is_main_op(graph, found.norm_grad, kHalfnoteDomain, "BatchNormalizationGrad")) return false;
  const auto operands = graph.inputs(found.norm_grad);
  const auto results = graph.outputs(found.norm_grad);
  if (operands[0] != dy || operands.size() > kGradBias + 1 || results.size() > kGradSum)
    return false;
  if (!graph.output(found.norm_grad, 0).valid()) return false;
  for (size_t i = kNormOperands; i < operands.size() && i < kGradBias; ++i) {
    if (operands[i].valid()) return false;
  }
  const bool masks = operands.size() > kGradBias;
  if (masks != has_relu(graph, found.norm)) return false;
  if (masks && operands[kGradBias] != graph.input(found.norm, 2)) return false;
  return operands[1] == graph.input(found.norm, 0) && operands[2] == graph.input(found.norm, 1) &&
         operands[3] == graph.output(found.norm, kMean) &&
         operands[4] == graph.output(found.norm, kInvStd);
}

bool find(const Graph& graph, NodeId pool, NormedPool& found) {
  if (!is_main_op(graph, pool, kHalfnoteDomain, "MaxPool") || graph.inputs(pool).size() != 1)
    return false;
  const ValueId n = graph.input(pool, 0), y = graph.output(pool), taps = graph.output(pool, kTaps);
  found.pool = pool;
  found.norm = producer(graph, n);
  if (!is_main_op(graph, found.norm, kHalfnoteDomain, "BatchNormalization")) return false;
  if (graph.inputs(found.norm).size() != kNormOperands ||
      graph.outputs(found.norm).size() != kNormResults || graph.output(found.norm) != n)
    return false;
  if (only_user(graph, n) != pool || !taps.valid()) return false;
  if (!has_no_empty_window(graph, pool) || !is_worthwhile(graph, n, y)) return false;
  found.pool_grad = only_user(graph, taps);
  if (!is_main_op(graph, found.pool_grad, kHalfnoteDomain, "MaxPoolTapsGrad")) return false;
  if (!alike(graph, graph.input(found.pool_grad, 0), y) || !find_gradient(graph, found))
    return false;
  found.relu = has_relu(graph, found.norm) || has_relu(graph, pool);
  return true;
}

/// The pool takes X by the signs of the scale; its result, and the line of the norm over that in
/// its place.
ValueId pool_first(Graph& graph, const NormedPool& found, PassContext& context) {
  const NodeId norm = found.norm;
  const ValueId pooled = graph.output(found.pool);
  graph.set_input(found.pool, 0, graph.input(norm, 0));
  graph.add_node_input(found.pool, graph.input(norm, 1));
  for (const NodeId node : {norm, found.pool}) graph.node(node).attributes.erase("activation");
  graph.drop_output(norm, 0);

  Builder b(graph, graph.after(found.pool), context.infer);
  b.set_role(graph.node(norm).role);
  const Expr x = b.to_math(b.value(pooled));
  const NodeId first = b.last();
  const auto channel = [&](ValueId value) { return per_channel(b.value(value), x.rank()); };
  const Expr normalized =
      (x - channel(graph.output(norm, kMean))) * channel(graph.output(norm, kInvStd));
  Expr y = normalized * channel(graph.input(norm, 1)) + channel(graph.input(norm, 2));
  if (found.relu) y = b.op("Relu", {y});
  y = b.cast(y, graph.value(pooled).type.dtype);
  graph.value(y.id).scale_power = graph.value(pooled).scale_power;
  take_place(graph, pooled, y.id);
  graph.set_input(first, 0, pooled);
  return pooled;
}

/// A result that the node may have already.
ValueId result(Graph& graph, NodeId node, size_t index, const std::string& name) {
  const ValueId there = graph.output(node, index);
  return there.valid() ? there : graph.add_node_output(node, index, graph.unique_name(name));
}

/// The gradient of the norm sums over what the pool has left, that of the pool makes dX.
void gather_gradient(Graph& graph, const NormedPool& found, ValueId pooled, PassContext& context) {
  const NodeId grad = found.norm_grad;
  const ValueId dy = graph.input(found.pool_grad, 0), dx = graph.output(grad, 0);
  const std::string name = graph.value(dx).name;
  graph.set_input(grad, 0, dy);
  graph.set_input(grad, 1, pooled);
  if (found.relu) {
    while (graph.inputs(grad).size() <= kGradBias) graph.add_node_input(grad, {});
    graph.set_input(grad, kGradBias, graph.input(found.norm, 2));
  }
  const ValueId d_scale = result(graph, grad, 1, name + ".scale"),
                d_bias = result(graph, grad, 2, name + ".bias"),
                counted = found.relu ? result(graph, grad, kGradSum, name + ".pooled") : dy;

  Builder b(graph, graph.after(grad), context.infer);
  b.set_role(graph.node(grad).role);
  b.set_origin(graph.node(grad).origin);
  context.infer(graph, grad);
  std::vector<Expr> operands;
  for (const ValueId operand :
       {counted, graph.output(found.pool, kTaps), graph.input(found.norm, 0),
        graph.input(found.norm, 1), graph.output(found.norm, kMean),
        graph.output(found.norm, kInvStd), d_scale, d_bias})
    operands.push_back(b.value(operand));
  const Expr whole = b.ops("NormalizedMaxPoolGrad", operands, 1,
                           graph.node(found.pool_grad).attributes, kHalfnoteDomain)[0];
  graph.value(whole.id).scale_power = graph.value(dx).scale_power;
  for (const ValueId added : {counted, d_scale, d_bias})
    graph.value(added).scale_power = graph.value(dy).scale_power;
  take_place(graph, dx, whole.id);
  graph.drop_output(grad, 0);
  graph.remove(found.pool_grad);
}

}  // namespace

bool pool_before_norm(Graph& graph, PassContext& context) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    NormedPool found;
    if (!find(graph, node, found)) continue;
    const ValueId pooled = pool_first(graph, found, context);
    gather_gradient(graph, found, pooled, context);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
