// fuse_norms: a BatchNormalization in training writes what a sum and a Relu make of its result, and
// its gradient takes dY as it stands behind them, for GPUs: memory is passed over once less.
//
//   n, … = ai.halfnote.BatchNormalization (x, s, b, m, v)
//   a = Add (n, r)   y = Relu (a)
//     ──▶   y, … = ai.halfnote.BatchNormalization <activation = "Relu"> (x, s, b, m, v, r)
//
//   g = Add (g1, g2)   d = ReluGrad (g, y)
//   dx, ds, db = ai.halfnote.BatchNormalizationGrad (d, x, s, mean, inv_std)
//     ──▶   dx, ds, db, d = ai.halfnote.BatchNormalizationGrad (g1, x, s, mean, inv_std, g2, y)
//
// d is a result where others read it, and where it is a sum: the first of the gradient's two passes
// writes it, the second one reads it. Where y is of a norm without a sum, the gradient finds its
// sign again from x, which it reads in any case, and takes b instead of y. Of a norm with a sum it
// takes the signs of y, a bit an element, where y is 16-bit, has pixels and a multiple of 8
// channels.
// Where two norms are added up (a block's last one and that of its projection), the later one
// normalizes the X of the other one on its way, by the line that this has saved, and both gradients
// are one node, which reads dY and the signs once a pass:
//
//   k, …, m1, i1 = ai.halfnote.BatchNormalization (u, t, c, …)
//   y, … = ai.halfnote.BatchNormalization <…> (x, s, b, m, v, k)
//     ──▶   …, m1, i1 = ai.halfnote.BatchNormalization (u, t, c, …)
//           y, … = ai.halfnote.BatchNormalization <…> (x, s, b, m, v, u, t, c, m1, i1)
//
//   dx, ds, db, d = ai.halfnote.BatchNormalizationGrad (g1, x, …, g2, , , signs)
//   du, dt, dc = ai.halfnote.BatchNormalizationGrad (d, u, t, m1, i1)
//     ──▶   dx, ds, db, , du, dt, dc =
//               ai.halfnote.BatchNormalizationGrad (g1, x, …, g2, , , signs, u, t, m1, i1)
//
// Rounding: the normalized value is not rounded before the sum, and a Relu sees the statistics as
// they are saved, in f32.
// Leaves alone: results that others read before the Relu, sums that broadcast, sums of gradients
// that a chain of elementwise nodes makes on its way, bodies; two norms whose statistics are not
// kept, two gradients without signs.
#include "passes/device/norms/fuse_norms.h"

#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/device/norms/parts.h"

namespace halfnote {
namespace {

constexpr size_t kPlainOperands = 5;  // of either node, without those of this pass
constexpr size_t kSumResult = 3;
constexpr size_t kSigns = 5;  // of the norm's results
constexpr size_t kResidual = 5, kSavedMean = 3, kSavedInvStd = 4;
constexpr size_t kGradSigns = 8, kGradsOfOther = 4;  // of the gradient's operands and results

bool is_plain_norm(const Graph& graph, NodeId id, std::string_view op) {
  return is_main_op(graph, id, kHalfnoteDomain, op) && graph.inputs(id).size() == kPlainOperands &&
         !graph.node(id).attributes.has("activation");
}

/// Do all who read results of the node, from result `first` on, stand behind `place`?
bool are_read_behind(const Graph& graph, NodeId id, size_t first, NodeId place) {
  const auto outputs = graph.outputs(id);
  for (size_t i = first; i < outputs.size(); ++i) {
    if (!outputs[i].valid()) continue;
    for (const Use& use : graph.uses(outputs[i])) {
      if (!use.by_node()) continue;
      const bool here = graph.node(use.node()).region == graph.main();
      if (!here || !graph.is_before(place, use.node())) return false;
    }
  }
  return true;
}

// --- forward -------------------------------------------------------------------------------------

struct NormTail {
  NodeId add, relu;  // either may be missing
  ValueId residual;
  NodeId last() const { return relu.valid() ? relu : add; }
};

/// Is the other operand of the sum a norm too, which stands later and takes the sum?
bool is_later_norm(const Graph& graph, ValueId other, NodeId norm) {
  const NodeId maker = producer(graph, other);
  return is_plain_norm(graph, maker, "BatchNormalization") && graph.output(maker) == other &&
         only_user(graph, other).valid() && graph.is_before(norm, maker);
}

bool find_tail(const Graph& graph, NodeId norm, NormTail& tail) {
  const ValueId y = graph.output(norm);
  if (!y.valid()) return false;
  NodeId user = only_user(graph, y);
  if (is_main_op(graph, user, "", "Add")) {
    const ValueId other = graph.input(user, graph.input(user, 0) == y ? 1 : 0);
    if (other == y || !alike(graph, other, y) || is_later_norm(graph, other, norm)) return false;
    tail.add = user;
    tail.residual = other;
    user = only_user(graph, graph.output(user));
  }
  if (is_main_op(graph, user, "", "Relu")) tail.relu = user;
  if (!tail.last().valid()) return false;
  const bool stays = !tail.residual.valid() || is_made_before(graph, tail.residual, norm);
  return stays || are_read_behind(graph, norm, 1, tail.last());
}

bool fuse_forward(Graph& graph, NodeId norm) {
  NormTail tail;
  if (!is_plain_norm(graph, norm, "BatchNormalization") || !find_tail(graph, norm, tail))
    return false;
  if (tail.residual.valid()) {
    if (!is_made_before(graph, tail.residual, norm))
      graph.move_before(norm, graph.before(tail.last()));
    graph.add_node_input(norm, tail.residual);
  }
  if (tail.relu.valid()) graph.node(norm).attributes.set("activation", std::string("Relu"));
  const ValueId y = graph.output(norm);
  if (tail.add.valid() && tail.relu.valid()) {
    const ValueId sum = graph.output(tail.add);
    graph.replace_uses(sum, y);
    graph.remove(tail.add);
  }
  take_over(graph, graph.output(tail.last()), y);
  return true;
}

/// A residual that only this norm reads is normalized by it.
bool fuse_residual_norm(Graph& graph, NodeId norm) {
  if (!is_main_op(graph, norm, kHalfnoteDomain, "BatchNormalization")) return false;
  if (graph.inputs(norm).size() != kResidual + 1) return false;
  const ValueId residual = graph.input(norm, kResidual);
  const NodeId other = producer(graph, residual);
  if (!is_plain_norm(graph, other, "BatchNormalization") || graph.output(other) != residual ||
      only_user(graph, residual) != norm)
    return false;
  const ValueId mean = graph.output(other, kSavedMean), inv_std = graph.output(other, kSavedInvStd);
  if (!mean.valid() || !inv_std.valid() || !alike(graph, graph.input(other, 0), residual))
    return false;
  graph.set_input(norm, kResidual, graph.input(other, 0));
  for (const ValueId part : {graph.input(other, 1), graph.input(other, 2), mean, inv_std})
    graph.add_node_input(norm, part);
  graph.drop_output(other, 0);
  return true;
}

// --- gradient ------------------------------------------------------------------------------------

struct GradHead {
  NodeId mask, add;       // either may be missing
  ValueId first, second;  // the parts of dY; the second may be missing
  ValueId y, bias;        // one of them, if there is a mask
  NodeId signed_by;       // the norm that can give the signs of y
  NodeId place;           // where the node goes
  bool keeps_sum = false;
};

void find_parts(const Graph& graph, NodeId grad, ValueId sum, GradHead& head) {
  head.first = sum;
  const NodeId add = producer(graph, sum);
  if (!is_main_op(graph, add, "", "Add")) return;
  // Behind a mask nobody else may read the sum: it is not what is kept.
  if (head.mask.valid() && !only_user(graph, sum).valid()) return;
  const ValueId a = graph.input(add, 0), b = graph.input(add, 1), x = graph.input(grad, 1);
  if (!alike(graph, a, x) || !alike(graph, b, x)) return;
  if (is_made_on_the_way(graph, a) || is_made_on_the_way(graph, b)) return;
  head.add = add;
  head.first = a;
  head.second = b;
}

/// The bias of the norm whose result the mask reads, if the gradient can compute that result again.
ValueId bias_of_line(const Graph& graph, NodeId grad, ValueId y) {
  const NodeId norm = producer(graph, y);
  if (!is_main_op(graph, norm, kHalfnoteDomain, "BatchNormalization")) return {};
  const auto operands = graph.inputs(norm), results = graph.outputs(norm);
  if (operands.size() != kPlainOperands || results.size() != 5 || results[0] != y) return {};
  const bool same = operands[0] == graph.input(grad, 1) && operands[1] == graph.input(grad, 2) &&
                    results[3] == graph.input(grad, 3) && results[4] == graph.input(grad, 4);
  return same && graph.node(norm).attributes.has("activation") ? operands[2] : ValueId{};
}

/// The norm whose result the mask reads, if it can keep the signs of that.
NodeId signs_maker(const Graph& graph, ValueId y) {
  const NodeId norm = producer(graph, y);
  if (!is_main_op(graph, norm, kHalfnoteDomain, "BatchNormalization")) return {};
  const ValueType& type = graph.value(y).type;
  const bool whole_bytes = type.shape->size() >= 3 && (*type.shape)[1].known() &&
                           (*type.shape)[1].value % 8 == 0 && is_16bit_float(type.dtype);
  const bool fits = whole_bytes && graph.output(norm) == y;
  return fits && graph.node(norm).attributes.has("activation") ? norm : NodeId{};
}

/// The signs of y, a result of the norm from now on.
ValueId keep_signs(Graph& graph, NodeId norm, ValueId y, PassContext& context) {
  if (!graph.output(norm, kSigns).valid()) {
    graph.add_node_output(norm, kSigns, graph.unique_name(graph.value(y).name + ".signs"));
    context.infer(graph, norm);
  }
  return graph.output(norm, kSigns);
}

/// A sum that others read is made where it was: are the other operands there by then?
bool find_place(const Graph& graph, NodeId grad, GradHead& head) {
  head.place = grad;
  if (!head.keeps_sum) return true;
  head.place = head.mask.valid() ? head.mask : head.add;
  const auto operands = graph.inputs(grad);
  return std::all_of(operands.begin() + 1, operands.end(),
                     [&](ValueId value) { return is_made_before(graph, value, head.place); });
}

bool find_head(const Graph& graph, NodeId grad, GradHead& head) {
  if (!is_plain_norm(graph, grad, "BatchNormalizationGrad")) return false;
  const ValueId dy = graph.input(grad, 0);
  if (!alike(graph, dy, graph.input(grad, 1))) return false;
  const NodeId maker = producer(graph, dy);
  if (is_main_op(graph, maker, kHalfnoteDomain, "ReluGrad")) {
    const ValueId y = graph.input(maker, 1);
    if (!alike(graph, y, dy) || !alike(graph, graph.input(maker, 0), dy)) return false;
    head.mask = maker;
    head.bias = bias_of_line(graph, grad, y);
    if (!head.bias.valid()) {
      head.y = y;
      head.signed_by = signs_maker(graph, y);
    }
  }
  find_parts(graph, grad, head.mask.valid() ? graph.input(head.mask, 0) : dy, head);
  if (!head.mask.valid() && !head.add.valid()) return false;
  head.keeps_sum = head.add.valid() || !only_user(graph, dy).valid();
  return find_place(graph, grad, head);
}

bool fuse_gradient(Graph& graph, NodeId grad, PassContext& context) {
  GradHead head;
  if (!find_head(graph, grad, head)) return false;
  const ValueId dy = graph.input(grad, 0);
  if (head.place != grad) graph.move_before(grad, graph.before(head.place));
  graph.set_input(grad, 0, head.first);
  ValueId signs;
  if (head.signed_by.valid()) signs = keep_signs(graph, head.signed_by, head.y, context);
  for (const ValueId operand : {head.second, signs.valid() ? ValueId{} : head.y, head.bias, signs})
    graph.add_node_input(grad, operand);
  graph.resize_inputs(grad,
                      graph.inputs(grad).size());  // without those that are missing at the end
  if (head.keeps_sum) {
    const ValueId sum = graph.add_node_output(grad, kSumResult, graph.unique_name("sum"));
    graph.value(sum).type = graph.value(dy).type;
    take_over(graph, dy, sum);
  } else {
    graph.remove(head.mask);
  }
  if (head.mask.valid() && head.add.valid()) graph.remove(head.add);
  return true;
}

/// The gradient that reads the sum of this one, and nobody else does.
NodeId other_gradient(const Graph& graph, NodeId grad) {
  if (!is_main_op(graph, grad, kHalfnoteDomain, "BatchNormalizationGrad")) return {};
  const ValueId sum = graph.output(grad, kSumResult);
  if (graph.inputs(grad).size() != kGradSigns + 1 || !sum.valid()) return {};
  const NodeId other = only_user(graph, sum);
  if (!is_plain_norm(graph, other, "BatchNormalizationGrad") || graph.input(other, 0) != sum)
    return {};
  const auto operands = graph.inputs(other);
  const bool there = std::all_of(operands.begin() + 1, operands.end(), [&](ValueId operand) {
    return is_made_before(graph, operand, grad);
  });
  return there && alike(graph, operands[1], graph.input(grad, 1)) ? other : NodeId{};
}

bool fuse_gradients(Graph& graph, NodeId grad) {
  const NodeId other = other_gradient(graph, grad);
  if (!other.valid()) return false;
  for (size_t i = 1; i < kPlainOperands; ++i) graph.add_node_input(grad, graph.input(other, i));
  const size_t results = graph.outputs(other).size();
  for (size_t i = 0; i < results; ++i) {
    const ValueId from = graph.output(other, i);
    if (!from.valid()) continue;
    const ValueId to =
        graph.add_node_output(grad, kGradsOfOther + i, graph.unique_name(graph.value(from).name));
    graph.value(to).type = graph.value(from).type;
    graph.value(to).scale_power = graph.value(from).scale_power;
    take_place(graph, from, to);
  }
  graph.remove(other);
  graph.drop_output(grad, kSumResult);
  return true;
}

}  // namespace

bool fuse_norms(Graph& graph, PassContext& context) {
  bool changed = false;
  const auto nodes = graph.nodes();
  for (const NodeId node : nodes) {
    if (graph.node(node).alive) changed |= fuse_forward(graph, node);
  }
  for (const NodeId node : nodes) {
    if (graph.node(node).alive) changed |= fuse_residual_norm(graph, node);
  }
  for (const NodeId node : nodes) {
    if (graph.node(node).alive) changed |= fuse_gradient(graph, node, context);
  }
  for (const NodeId node : nodes) {
    if (graph.node(node).alive) changed |= fuse_gradients(graph, node);
  }
  return changed;
}

}  // namespace halfnote
