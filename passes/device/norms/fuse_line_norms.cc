// fuse_line_norms: a LayerNormalization or RMSNormalization adds the residual before it, and its
// gradient adds up dY and what meets dX, for GPUs: memory is passed over less often.
//
//   a = Add (x, r)   y, mean, inv_std = LayerNormalization (a, s, b)
//     ──▶   y, mean, inv_std, a = ai.halfnote.LayerNormalization (x, s, b, r)
//
//   g = Add (g1, g2)   d, ds, db = ai.halfnote.LayerNormalizationGrad (g, a, s, mean, inv_std)
//   t = Add (d, q)
//     ──▶   t, ds, db = ai.halfnote.LayerNormalizationGrad (g1, a, s, mean, inv_std, g2, q)
//
// So of a block with the norm in front the gradient needs no pass for the sum with that of the
// residual path, and of one with the norm behind none for the sum of what flows into the next
// layer and past it.
// Rounding: d is not rounded before t; the forward and g keep their bits.
// Leaves alone: sums that broadcast, operands of a sum that a chain of elementwise nodes makes on
// its way (the chain writes the sum with what it reads in any case; the bias of a product is none,
// the product adds it: absorb-biases-on-gpu), sums behind a gradient that a chain takes further,
// which need not go to memory, f64, bodies.
#include "passes/device/norms/fuse_line_norms.h"

#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/norms/parts.h"
#include "passes/device/products/absorb_biases.h"

namespace halfnote {
namespace {

/// Where the operands and results of this pass stand; of a gradient dY2, and behind it dX2.
struct LineOp {
  std::string_view name, gradient;
  size_t residual, sum, more;
};

constexpr LineOp kLineOps[] = {
    {"LayerNormalization", "LayerNormalizationGrad", 3, 3, 5},
    {"RMSNormalization", "RMSNormalizationGrad", 2, 1, 3},
};

/// The operands of an Add that a norm may take over.
struct Sum {
  NodeId add;
  ValueId first, second;
};

bool is_of_chain(const Graph& graph, ValueId value) {
  return is_made_on_the_way(graph, value) &&
         !is_bias_of_product_on_gpu(graph, producer(graph, value));
}

/// Is it an Add of two tensors like its result, none of which a chain makes on its way?
bool find_sum(const Graph& graph, NodeId add, Sum& sum) {
  if (!is_main_op(graph, add, "", "Add")) return false;
  sum = {add, graph.input(add, 0), graph.input(add, 1)};
  const ValueId result = graph.output(add);
  const auto fits = [&](ValueId value) {
    return alike(graph, value, result) && !is_of_chain(graph, value);
  };
  return graph.value(result).type.dtype != DType::kF64 && fits(sum.first) && fits(sum.second);
}

void set_operand(Graph& graph, NodeId node, size_t index, ValueId value) {
  while (graph.inputs(node).size() <= index) graph.add_node_input(node, {});
  graph.set_input(node, index, value);
}

// --- forward -------------------------------------------------------------------------------------

/// Are the parameters there where the sum is, and the statistics of the type that ours have?
bool fits_at_sum(const Graph& graph, NodeId norm, NodeId add) {
  const auto operands = graph.inputs(norm), results = graph.outputs(norm);
  for (size_t i = 1; i < operands.size(); ++i) {
    if (operands[i].valid() && !is_made_before(graph, operands[i], add)) return false;
  }
  return std::all_of(results.begin() + 1, results.end(), [&](ValueId value) {
    return !value.valid() || graph.value(value).type.dtype == DType::kF32;
  });
}

bool fuse_forward(Graph& graph, NodeId norm, const LineOp& op) {
  if (!is_main_op(graph, norm, "", op.name)) return false;
  const ValueId total = graph.input(norm, 0);
  Sum sum;
  if (!find_sum(graph, producer(graph, total), sum) || !fits_at_sum(graph, norm, sum.add))
    return false;
  graph.move_before(norm, graph.before(sum.add));
  Node& node = graph.node(norm);
  node.domain = kHalfnoteDomain;
  node.attributes.erase("stash_type");
  graph.set_input(norm, 0, sum.first);
  set_operand(graph, norm, op.residual, sum.second);
  if (graph.uses(total).empty()) {
    graph.remove(sum.add);
    return true;
  }
  const ValueId result = graph.add_node_output(norm, op.sum, graph.unique_name("sum"));
  graph.value(result).type = graph.value(total).type;
  take_over(graph, total, result);
  return true;
}

// --- gradient ------------------------------------------------------------------------------------

bool has_operand(const Graph& graph, NodeId node, size_t index) {
  return index < graph.inputs(node).size() && graph.input(node, index).valid();
}

/// dY is a sum that nobody else reads.
bool fuse_before(Graph& graph, NodeId grad, const LineOp& op) {
  const ValueId dy = graph.input(grad, 0);
  Sum sum;
  if (has_operand(graph, grad, op.more) || !alike(graph, dy, graph.input(grad, 1)) ||
      only_user(graph, dy) != grad || !find_sum(graph, producer(graph, dy), sum))
    return false;
  graph.set_input(grad, 0, sum.first);
  set_operand(graph, grad, op.more, sum.second);
  graph.remove(sum.add);
  return true;
}

/// dX is read by a sum alone.
bool fuse_behind(Graph& graph, NodeId grad, const LineOp& op) {
  const ValueId dx = graph.output(grad);
  if (!dx.valid() || has_operand(graph, grad, op.more + 1)) return false;
  Sum sum;
  if (!find_sum(graph, only_user(graph, dx), sum)) return false;
  const ValueId other = sum.first == dx ? sum.second : sum.first;
  if (!is_made_before(graph, other, grad) || goes_into_chain(graph, graph.output(sum.add)))
    return false;
  set_operand(graph, grad, op.more + 1, other);
  take_over(graph, graph.output(sum.add), dx);
  return true;
}

bool fuse_gradient(Graph& graph, NodeId grad, const LineOp& op) {
  if (!is_main_op(graph, grad, kHalfnoteDomain, op.gradient)) return false;
  const bool before = fuse_before(graph, grad, op);
  return fuse_behind(graph, grad, op) || before;
}

}  // namespace

bool fuse_line_norms(Graph& graph, PassContext&) {
  bool changed = false;
  const auto nodes = graph.nodes();
  for (const NodeId node : nodes) {
    if (!graph.node(node).alive) continue;
    for (const LineOp& op : kLineOps)
      changed |= fuse_forward(graph, node, op) || fuse_gradient(graph, node, op);
  }
  return changed;
}

}  // namespace halfnote
