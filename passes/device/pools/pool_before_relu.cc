// pool_before_relu: a Relu in front of a MaxPool goes behind it, where there are fewer elements,
// with the gradients of both.
//
//   r = Relu (a)     p = MaxPool (r)     ──▶   q = MaxPool (a)   p = Relu (q)
//   e = MaxPoolGrad (d, r)
//   g = ReluGrad (e, r)                  ──▶   e = ReluGrad (d, p)   g = MaxPoolGrad (e, a)
//
// Exact: the largest of a window is the same element where it is above 0, and where it is not, no
// gradient passes. Leaves alone: a Relu that others read, or that is one with the elementwise node
// or the normalization before it in any case; a MaxPool whose Indices are wanted, or of whose
// windows one may lie in the padding alone (its -Inf would become 0); bodies; all of a step whose
// activations are limited: a Relu is computed again where its gradient reads it, for less memory
// than the operand of the MaxPool takes.
#include "passes/device/pools/pool_before_relu.h"

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/device/norms/parts.h"
#include "passes/device/pools/windows.h"
#include "passes/device/rematerialize.h"

namespace halfnote {
namespace {

struct Swap {
  NodeId relu, pool;
  NodeId pool_grad, relu_grad;  // both, or neither
};

/// Takes a reader of the Relu's result; says whether it may be one.
bool take_reader(const Graph& graph, const Use& use, Swap& swap) {
  if (!use.by_node()) return false;
  const NodeId node = use.node();
  if (is_main_op(graph, node, "", "MaxPool") && !swap.pool.valid()) {
    swap.pool = node;
    return graph.outputs(node).size() == 1 && has_no_empty_window(graph, node);
  }
  if (is_main_op(graph, node, kHalfnoteDomain, "MaxPoolGrad") && !swap.pool_grad.valid()) {
    swap.pool_grad = node;
    return use.slot == 1;
  }
  if (is_main_op(graph, node, kHalfnoteDomain, "ReluGrad") && !swap.relu_grad.valid()) {
    swap.relu_grad = node;
    return use.slot == 1;
  }
  return false;
}

bool find_swap(const Graph& graph, NodeId relu, Swap& swap) {
  if (!is_main_op(graph, relu, "", "Relu")) return false;
  if (is_made_on_the_way(graph, graph.input(relu, 0))) return false;
  swap.relu = relu;
  for (const Use& use : graph.uses(graph.output(relu))) {
    if (!take_reader(graph, use, swap)) return false;
  }
  if (!swap.pool.valid() || swap.pool_grad.valid() != swap.relu_grad.valid()) return false;
  if (!swap.pool_grad.valid()) return true;
  const ValueId between = graph.output(swap.pool_grad);
  return graph.input(swap.relu_grad, 0) == between && only_user(graph, between) == swap.relu_grad &&
         is_made_before(graph, graph.output(swap.pool), swap.pool_grad);
}

/// `second` read what `first` made, through their operands 0; now it is the other way round. Its
/// result keeps the name, and who reads it.
void exchange(Graph& graph, NodeId first, NodeId second) {
  const ValueId source = graph.input(first, 0), made = graph.output(first),
                result = graph.output(second);
  take_place(graph, result, made);
  graph.set_input(second, 0, source);
  graph.set_input(first, 0, result);
  graph.move_before(second, graph.before(first));
}

void apply(Graph& graph, const Swap& swap) {
  const ValueId source = graph.input(swap.relu, 0), relu = graph.output(swap.relu),
                pool = graph.output(swap.pool);
  exchange(graph, swap.relu, swap.pool);
  graph.value(relu).type = graph.value(pool).type;
  if (!swap.pool_grad.valid()) return;
  const ValueId of_pool = graph.output(swap.pool_grad), of_relu = graph.output(swap.relu_grad);
  const ValueType small = graph.value(graph.input(swap.pool_grad, 0)).type;
  exchange(graph, swap.pool_grad, swap.relu_grad);
  graph.set_input(swap.pool_grad, 1, source);
  graph.value(of_pool).type = graph.value(of_relu).type;
  graph.value(of_relu).type = small;
}

}  // namespace

bool pool_before_relu(Model& model, PassContext&) {
  if (activation_limit(model) > 0) return false;
  Graph& graph = model.graph;
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    Swap swap;
    if (!find_swap(graph, node, swap)) continue;
    apply(graph, swap);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
