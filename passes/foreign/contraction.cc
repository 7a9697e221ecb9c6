// Foreign contractions. ONNX Runtime's recurrent ops keep their gates in an order of their own;
// ours keep what our gradient reads, so a forward node and its gradient are lifted together.
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "passes/foreign/parts.h"

namespace halfnote::foreign {
namespace {

/// Dims 1 … rank − 2 first, then dim 0, then the last: how FusedMatMul moves the batch.
Expr move_batch(LowerContext& c, Expr x) {
  std::vector<int64_t> perm = axes_between(1, x.rank() - 1);
  perm.push_back(0);
  perm.push_back(x.rank() - 1);
  return c.b.transpose(x, perm);
}

/// dX and dW by the rule of the forward op, dB as the sum over all axes but the channels'.
Results convolution_grad(LowerContext& c, std::string_view op) {
  const Expr dy = require_input(c, 0);
  const Attributes attributes =
      chosen_attributes(c, {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides",
                            "output_padding", "output_shape"});
  Results results = {c.b.none(), c.b.none(), c.b.none()};
  if (c.wants(0) || c.wants(1)) {
    const Results grads = gradient_of(c, op, attributes, {require_input(c, 1), require_input(c, 2)},
                                      dy, {c.wants(0), c.wants(1)});
    results[0] = grads[0];
    results[1] = grads[1];
  }
  if (c.wants(2)) results[2] = c.b.reduce_sum(dy, axes_but_channel(dy.rank()), false);
  return results;
}

Attributes recurrent_attributes(LowerContext& c) {
  return chosen_attributes(
      c, {"activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size",
          "input_forget", "layout", "linear_before_reset"});
}

/// Our node that stands for the LSTMTraining or GRUTraining of this gradient: the one that makes
/// its `stash`.
NodeId forward_of(LowerContext& c, Expr stash, std::string_view op) {
  const NodeId node = stash.valid() ? producer_of(c, stash) : NodeId{};
  if (!node.valid() || c.b.graph().node(node).op != op ||
      c.b.graph().node(node).domain != kHalfnoteDomain) {
    refuse(c, "the gates do not come from " + std::string(op) + "Training in the same graph");
  }
  return node;
}

Expr of_node(LowerContext& c, ValueId value) { return c.b.value(value); }

}  // namespace

Results fused_matmul(LowerContext& c) {
  Expr a = require_input(c, 0), w = require_input(c, 1);
  if (c.attributes().get_int("transBatchA", 0) != 0) a = move_batch(c, a);
  if (c.attributes().get_int("transBatchB", 0) != 0) w = move_batch(c, w);
  const bool left = c.attributes().get_int("transA", 0) != 0 && a.rank() > 1;
  const bool right = c.attributes().get_int("transB", 0) != 0 && w.rank() > 1;
  const double alpha = c.attributes().get_float("alpha", 1);
  Expr product = c.b.none();
  if (left || right) {
    if (a.rank() < 2 || w.rank() < 2) refuse(c, "a transposed product with a vector");
    product = c.b.op("MatMul", {a, w}, {{"transA", int64_t{left}}, {"transB", int64_t{right}}},
                     kHalfnoteDomain);
  } else {
    product = c.b.op("MatMul", {a, w});
  }
  return {alpha == 1 ? product : product * alpha};
}

Results conv_grad(LowerContext& c) { return convolution_grad(c, "Conv"); }
Results conv_transpose_grad(LowerContext& c) { return convolution_grad(c, "ConvTranspose"); }

Results lstm_training(LowerContext& c) {
  return c.b.ops("LSTM", c.inputs, 5, recurrent_attributes(c), kHalfnoteDomain);
}

Results gru_training(LowerContext& c) {
  Attributes attributes = recurrent_attributes(c);
  const bool hidden = attributes.get_int("linear_before_reset", 0) != 0;
  Results results = c.b.ops("GRU", c.inputs, hidden ? 4 : 3, attributes, kHalfnoteDomain);
  results.resize(3);  // Y, Y_h and what stands for ZRH
  return results;
}

/// X, W, R, SL?, H0?, C0?, HAll?, CAll?, iofc?, dHAll?, dHFinal?, dCFinal?
Results lstm_grad(LowerContext& c) {
  Graph& graph = c.b.graph();
  const NodeId forward = forward_of(c, input_or_none(c, 8), "LSTM");
  const std::vector<Expr> operands = {require_input(c, 0),
                                      require_input(c, 1),
                                      require_input(c, 2),
                                      input_or_none(c, 3),
                                      input_or_none(c, 4),
                                      input_or_none(c, 5),
                                      of_node(c, graph.input(forward, 7)),
                                      of_node(c, graph.output(forward, 0)),
                                      of_node(c, graph.output(forward, 3)),
                                      of_node(c, graph.output(forward, 4)),
                                      input_or_none(c, 9),
                                      input_or_none(c, 10),
                                      input_or_none(c, 11)};
  return c.b.ops("LSTMGrad", operands, 7, recurrent_attributes(c), kHalfnoteDomain);
}

/// X, W, R, B?, SL?, H0?, HAll?, ZRH?, dHAll?, dHFinal?
Results gru_grad(LowerContext& c) {
  Graph& graph = c.b.graph();
  const NodeId forward = forward_of(c, input_or_none(c, 7), "GRU");
  const std::vector<Expr> operands = {require_input(c, 0),
                                      require_input(c, 1),
                                      require_input(c, 2),
                                      input_or_none(c, 4),
                                      input_or_none(c, 5),
                                      of_node(c, graph.output(forward, 0)),
                                      of_node(c, graph.output(forward, 2)),
                                      of_node(c, graph.output(forward, 3)),
                                      input_or_none(c, 8),
                                      input_or_none(c, 9)};
  return c.b.ops("GRUGrad", operands, 5, recurrent_attributes(c), kHalfnoteDomain);
}

}  // namespace halfnote::foreign
