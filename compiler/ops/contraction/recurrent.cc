// RNN, GRU and LSTM: inference of our forms and the gradient rule.
//
// ONNX's ops keep nothing for the backward. In training the forward gives way to the form of
// ai.halfnote, which also returns what goes into its activations (gates), and the cells (LSTM) or
// the hidden part of the last gate (GRU with linear_before_reset); <Op>Grad runs back over them:
//   Y, Y_h, Y_c, gates, cells = LSTM(X, W, R, B, …)
//   dX, dW, dR, dB, … = LSTMGrad(X, W, R, …, Y, gates, cells, dY, dY_h, dY_c)
#include <span>
#include <string>
#include <tuple>

#include "base/error.h"
#include "base/ops/recurrence.h"
#include "compiler/ir/model.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

Dim times(const Dim& dim, int64_t factor) {
  if (factor == 1) return dim;
  return dim.known() ? Dim(checked_mul(dim.value, factor)) : Dim();
}

/// The sizes of a recurrent op or its gradient, symbols kept.
struct Sizes {
  Recurrence r;
  Dim steps, batch, hidden;

  SymbolicShape y() const {
    const Dim directions(r.directions());
    if (r.batch_first) return {batch, steps, directions, hidden};
    return {steps, directions, batch, hidden};
  }
  SymbolicShape state() const {
    const Dim directions(r.directions());
    if (r.batch_first) return {batch, directions, hidden};
    return {directions, batch, hidden};
  }
  /// `blocks` blocks of the width of the hidden state for each time and row, time before batch.
  SymbolicShape stash(int64_t blocks) const {
    return {Dim(r.directions()), steps, batch, times(hidden, blocks)};
  }
  SymbolicShape per_direction(int64_t blocks) const {
    return {Dim(r.directions()), times(hidden, blocks)};
  }
};

Sizes sizes_of(const Graph& graph, NodeId node) {
  const Node& data = graph.node(node);
  const SymbolicShape& x = operand_shape(graph, node, 0);
  const SymbolicShape& r = operand_shape(graph, node, 2);
  if (x.size() != 3 || operand_shape(graph, node, 1).size() != 3 || r.size() != 3) {
    throw Error(ErrorCode::kModel, "X, W or R of a recurrent op has the wrong rank")
        .expected("rank 3", to_string(x) + ", " + to_string(operand_shape(graph, node, 1)) +
                                " and " + to_string(r));
  }
  Sizes sizes{
      recurrence_of(*recurrent_op(data.op), data.attributes, r[2].known() ? r[2].value : -1),
      {},
      {},
      r[2]};
  sizes.steps = x[sizes.r.batch_first ? 1 : 0];
  sizes.batch = x[sizes.r.batch_first ? 0 : 1];
  return sizes;
}

bool fits(const SymbolicShape& given, const SymbolicShape& wanted) {
  if (given.size() != wanted.size()) return false;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].known() && wanted[i].known() && given[i].value != wanted[i].value) return false;
  }
  return true;
}

/// The weights and states of a forward op against its hidden size.
void check_operands(const Graph& graph, NodeId node, const Sizes& sizes) {
  const int64_t gates = sizes.r.gates();
  const Dim directions(sizes.r.directions()), rows = times(sizes.hidden, gates);
  const std::vector<std::tuple<size_t, const char*, SymbolicShape>> operands = {
      {1, "W", {directions, rows, operand_shape(graph, node, 0)[2]}},
      {2, "R", {directions, rows, sizes.hidden}},
      {3, "B", sizes.per_direction(2 * gates)},
      {5, "initial_h", sizes.state()},
      {6, "initial_c", sizes.state()},
      {7, "P", sizes.per_direction(3)}};
  const std::span<const ValueId> inputs = graph.inputs(node);
  for (const auto& [index, name, wanted] : operands) {
    if (index >= inputs.size() || !inputs[index].valid()) continue;
    const auto& given = graph.value(inputs[index]).type.shape;
    if (!given || fits(*given, wanted)) continue;
    throw Error(ErrorCode::kModel, std::string(name) + " of a recurrent op does not fit the others")
        .expected(to_string(wanted), to_string(*given))
        .hint("ONNX knows no projections: export an LSTM with proj_size 0, and a layer behind it");
  }
}

/// Operand `index` of a node, none beyond its end.
Expr operand(const GradientContext& rule, size_t index) {
  return index < rule.inputs.size() ? rule.inputs[index] : rule.b.none();
}

struct Stash {
  Expr y, gates, more;  // more: cells or hidden
};

/// Makes the forward node keep what the backward reads. Nothing else may read it: what a second
/// derivative adds to the gates has no way back.
Stash stash_of(GradientContext& rule, const Recurrence& r) {
  const size_t gates = r.op == RecurrentOp::kLstm ? 3 : 2;
  for (size_t i = gates; i < rule.grads.size(); ++i) {
    if (!rule.grads[i].valid()) continue;
    throw Error(ErrorCode::kUnsupported,
                "a gradient flows through the gates that its own gradient "
                "reads, a second derivative: write the steps out (MatMul, Sigmoid, Tanh)");
  }
  const bool more = r.op == RecurrentOp::kLstm || r.linear_before_reset;
  if (rule.graph().node(rule.node).domain.empty()) {
    const std::string op = rule.graph().node(rule.node).op;
    const Attributes attributes = rule.attributes();
    rule.replace_forward(op, kHalfnoteDomain, attributes, rule.inputs,
                         static_cast<int>(gates) + (more ? 2 : 1));
  }
  Stash stash;
  stash.y = rule.request_output(0);
  stash.gates = rule.request_output(gates);
  stash.more = more ? rule.request_output(gates + 1) : rule.b.none();
  return stash;
}

}  // namespace

std::vector<ValueType> infer_recurrent(const Graph& graph, NodeId node) {
  const Sizes sizes = sizes_of(graph, node);
  check_operands(graph, node, sizes);
  const DType dtype = operand_type(graph, node, 0).dtype;
  const DType math = math_dtype(dtype);
  std::vector<ValueType> types = {ValueType::tensor(dtype, sizes.y()),
                                  ValueType::tensor(dtype, sizes.state())};
  if (sizes.r.op == RecurrentOp::kLstm) types.push_back(ValueType::tensor(dtype, sizes.state()));
  if (sizes.r.reserve > 0) {
    types.push_back(ValueType::tensor(DType::kU8, {Dim(sizes.r.reserve)}));
    return types;
  }
  types.push_back(ValueType::tensor(math, sizes.stash(sizes.r.gates())));
  if (sizes.r.op != RecurrentOp::kRnn) types.push_back(ValueType::tensor(math, sizes.stash(1)));
  return types;
}

std::vector<ValueType> infer_recurrent_grad(const Graph& graph, NodeId node) {
  const Sizes sizes = sizes_of(graph, node);
  const DType dtype = operand_type(graph, node, 0).dtype;
  const DType wide = out_dtype_of(graph.node(node).attributes, dtype);
  const DType math = math_dtype(dtype);
  std::vector<ValueType> types = {operand_type(graph, node, 0),
                                  ValueType::tensor(wide, operand_shape(graph, node, 1)),
                                  ValueType::tensor(wide, operand_shape(graph, node, 2)),
                                  ValueType::tensor(math, sizes.per_direction(2 * sizes.r.gates())),
                                  ValueType::tensor(dtype, sizes.state())};
  if (sizes.r.op == RecurrentOp::kLstm) {
    types.push_back(ValueType::tensor(dtype, sizes.state()));
    types.push_back(ValueType::tensor(math, sizes.per_direction(3)));
  }
  return types;
}

std::vector<Expr> recurrent_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const std::string op = rule.graph().node(rule.node).op;
  const Attributes attributes = rule.attributes();
  const SymbolicShape r_shape = rule.inputs[2].shape();
  const Dim hidden = r_shape.empty() ? Dim() : r_shape.back();
  const Recurrence r =
      recurrence_of(*recurrent_op(op), attributes, hidden.known() ? hidden.value : -1);
  if (r.reserve > 0) {
    throw Error(ErrorCode::kUnsupported, "a recurrent op that keeps a reserve has no gradient yet")
        .hint("only the passes of a device set the attribute reserve");
  }
  const Stash stash = stash_of(rule, r);
  const bool lstm = r.op == RecurrentOp::kLstm;
  const auto grad = [&](size_t i) { return i < rule.grads.size() ? rule.grads[i] : b.none(); };

  // Operands of the forward whose gradient is result 0, 1, …
  std::vector<size_t> of = {0, 1, 2, 3, 5};
  std::vector<Expr> operands = {operand(rule, 0), operand(rule, 1), operand(rule, 2),
                                operand(rule, 4), operand(rule, 5)};
  if (lstm) {
    of.insert(of.end(), {6, 7});
    operands.insert(operands.end(), {operand(rule, 6), operand(rule, 7)});
  }
  operands.insert(operands.end(), {stash.y, stash.gates});
  if (r.op != RecurrentOp::kRnn) operands.push_back(stash.more);
  operands.insert(operands.end(), {grad(0), grad(1)});
  if (lstm) operands.push_back(grad(2));

  const std::vector<Expr> grads =
      b.ops(op + "Grad", operands, static_cast<int>(of.size()), attributes, kHalfnoteDomain);
  const NodeId made = b.last();
  std::vector<Expr> results(rule.inputs.size(), b.none());
  for (size_t i = of.size(); i-- > 0;) {
    const bool wanted = operand(rule, of[i]).valid() && rule.needed[of[i]];
    if (wanted) {
      results[of[i]] = b.cast(grads[i], operand(rule, of[i]).dtype());
    } else if (i > 0) {  // result 0 stays: it names the node
      rule.graph().drop_output(made, i);
    }
  }
  return results;
}

}  // namespace halfnote::contraction
