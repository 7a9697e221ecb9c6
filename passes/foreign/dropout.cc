// Foreign dropouts. Our dropout keeps no mask: it is a function of seed, step and node, so the
// forward node and its gradient are lifted together and share the node's number.
//
//   Y, mask = Dropout (X, ratio, true)
//   dX = DropoutGrad (dY, mask, ratio, true)
//     ──▶
//   Y = ai.halfnote.Dropout <ratio, node> (X, seed, step)
//   dX = ai.halfnote.Dropout <ratio, node> (dY, seed, step)
#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/rule_support.h"
#include "passes/foreign/parts.h"
#include "passes/train/step.h"

namespace halfnote::foreign {
namespace {

/// A random-number state of the step, shared by all dropouts.
Expr random_state(LowerContext& c, std::string_view name) {
  Graph& graph = c.b.graph();
  ValueId value = graph.find(name);
  if (!value.valid()) {
    value = graph.add_initializer(std::string(name), Tensor::scalar<int64_t>(0));
    graph.add_state(value, value, StateKind::kRandom);
  }
  return c.b.value(value);
}

/// The number of the next dropout: one more than the highest there is.
int64_t next_number(const Graph& graph) {
  int64_t next = 0;
  for (NodeId node : graph.nodes()) {
    const Node& data = graph.node(node);
    if (data.op != "Dropout" || data.domain != kHalfnoteDomain) continue;
    next = std::max(next, data.attributes.get_int("node", 0) + 1);
  }
  return next;
}

Expr our_dropout(LowerContext& c, Expr x, double ratio, int64_t number) {
  return c.b.op("Dropout", {x, random_state(c, kSeed), random_state(c, kAttemptedStep)},
                {{"ratio", static_cast<float>(ratio)}, {"node", number}}, kHalfnoteDomain);
}

double ratio_of(LowerContext& c, ValueId ratio) {
  if (!ratio.valid()) return 0.5;
  const Tensor* tensor = c.b.graph().constant(ratio);
  if (tensor == nullptr || tensor->size() != 1) refuse(c, "the ratio of its Dropout is computed");
  return tensor->at_as_double(0);
}

/// `x` through the dropout whose mask this is; `x` itself where it does nothing. The forward node
/// gives way at the first call.
Expr through_dropout_of(LowerContext& c, Expr x, size_t mask_input) {
  Graph& graph = c.b.graph();
  const ValueId mask = require_input(c, mask_input).id;
  const NodeId forward = graph.value(mask).producer;
  if (!forward.valid() || graph.node(forward).op != "Dropout") {
    refuse(c, "its mask does not come from a Dropout in the same graph");
  }
  const double ratio = ratio_of(c, graph.input(forward, 1));
  const Tensor* mode = graph.constant(graph.input(forward, 2));
  const bool on = mode != nullptr && mode->at_as_int(0) != 0 && ratio > 0;
  if (!graph.node(forward).domain.empty()) refuse(c, "its mask is read twice");
  if (!on) return x;
  const int64_t number = next_number(graph);
  const Expr dx = our_dropout(c, x, ratio, number);
  const InsertPoint here = c.b.insert_point();
  c.b.set_insert_point(graph.before(forward));
  const Role role = c.b.role();
  c.b.set_role(graph.node(forward).role);
  const Expr y = our_dropout(c, c.b.value(graph.input(forward, 0)), ratio, number);
  c.b.set_role(role);
  c.b.set_insert_point(here);
  take_place(graph, graph.output(forward), y.id);
  graph.set_input(c.node, mask_input, ValueId{});
  if (!graph.has_uses(mask)) graph.remove(forward);
  return dx;
}

}  // namespace

Results dropout_grad(LowerContext& c) { return {through_dropout_of(c, require_input(c, 0), 1)}; }

/// The mask in bits is read by BitmaskDropoutGrad alone, which looks for the node instead.
Results bitmask_dropout(LowerContext& c) { return c.b.ops("Dropout", c.inputs, 2); }

/// data, bias, ratio? -> dropped softmax, mask, softmax
Results bias_softmax_dropout(LowerContext& c) {
  const int64_t axis = c.attributes().get_int("axis", 1);
  const Expr sum = require_input(c, 0) + require_input(c, 1);
  if (normalize_axis(axis, sum.rank()) != sum.rank() - 1) refuse(c, "softmax over several axes");
  const Expr softmax = c.b.op("Softmax", {sum}, {{"axis", int64_t{-1}}});
  std::vector<Expr> operands = {softmax, input_or_none(c, 2)};
  operands.push_back(c.b.constant(Tensor::scalar<bool>(true)));
  Results results = c.b.ops("Dropout", operands, 2);
  results.push_back(softmax);
  return results;
}

/// dy, mask, softmax, ratio?
Results softmax_dropout_grad(LowerContext& c) {
  const Expr dy = through_dropout_of(c, require_input(c, 0), 1);
  return {
      c.b.op("SoftmaxGrad", {dy, require_input(c, 2)}, {{"axis", int64_t{-1}}}, kHalfnoteDomain)};
}

}  // namespace halfnote::foreign
