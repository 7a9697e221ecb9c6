// Foreign losses: SoftmaxCrossEntropyLoss with its options as operands, the two older losses of
// ONNX Runtime, whose classes stand along the last axis, and the gradients of all of them.
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "passes/foreign/parts.h"

namespace halfnote::foreign {
namespace {

/// Attribute `reduction`, and ignore_index: an attribute, or the constant operand `operand`.
Attributes loss_attributes(LowerContext& c, size_t operand) {
  Attributes attributes = chosen_attributes(c, {"reduction", "ignore_index"});
  if (!c.has_input(operand)) return attributes;
  const Tensor* index = c.b.graph().constant(c.inputs[operand].id);
  if (index == nullptr || index->size() != 1) refuse(c, "its ignore_index is computed");
  attributes.set("ignore_index", index->at_as_int(0));
  return attributes;
}

constexpr size_t kNone = ~size_t{0};

Expr loss_grad(LowerContext& c, size_t ignore_operand) {
  std::vector<Expr> operands = {c.b.to_math(require_input(c, 0)), require_input(c, 1),
                                require_input(c, 2)};
  if (c.has_input(3)) operands.push_back(c.inputs[3]);
  return c.b.ops("SoftmaxCrossEntropyLossGrad", operands, 1, loss_attributes(c, ignore_operand),
                 kHalfnoteDomain)[0];
}

/// Attribute `reduction` of the two older losses. Their kernels sum for none, which the schema says
/// is a loss for each sample: nobody could rely on either.
std::string older_reduction(LowerContext& c) {
  const std::string reduction = c.attributes().get_string("reduction", "mean");
  if (reduction == "none") refuse(c, "reduction none");
  return reduction;
}

/// The scores as a matrix: a row for each sample, with the classes of the last axis.
Expr rows_of_classes(LowerContext& c, Expr scores) {
  return c.b.op("Flatten", {scores}, {{"axis", int64_t{scores.rank() - 1}}});
}

/// The type that attribute `output_type` asks for.
Expr as_output_type(LowerContext& c, Expr x) {
  const auto dtype = dtype_from_onnx(c.attributes().get_int("output_type", 0));
  return dtype && is_float(*dtype) ? c.b.cast(x, *dtype) : x;
}

}  // namespace

/// scores, labels, weights?, ignore_index? -> loss, log_prob
Results loss_internal(LowerContext& c) {
  const bool nll = c.b.graph().node(c.node).op.starts_with("Negative");
  std::vector<Expr> operands = {require_input(c, 0), require_input(c, 1)};
  if (c.has_input(2)) operands.push_back(c.inputs[2]);
  const Attributes attributes = loss_attributes(c, 3);
  if (nll) return c.b.ops("NegativeLogLikelihoodLoss", operands, 1, attributes);
  operands[0] = as_output_type(c, operands[0]);
  return c.b.ops("SoftmaxCrossEntropyLoss", operands, 2, attributes);
}

Results softmax_cross_entropy_loss_grad(LowerContext& c) { return {loss_grad(c, kNone)}; }

/// The sixth operand is a gradient to be added.
Results softmax_cross_entropy_loss_internal_grad(LowerContext& c) {
  const Expr grad = as_output_type(c, loss_grad(c, 4));
  if (!c.has_input(5)) return {grad};
  return {grad + c.b.cast(c.b.reshape(c.inputs[5], c.b.shape_of(grad)), grad.dtype())};
}

/// scores, one-hot labels -> loss, log_prob
Results softmax_cross_entropy(LowerContext& c) {
  Builder& b = c.b;
  const std::string reduction = older_reduction(c);
  const Expr scores = require_input(c, 0);
  const Expr log_prob = b.op("LogSoftmax", {scores}, {{"axis", int64_t{-1}}});
  const Expr labels = b.cast(require_input(c, 1), log_prob.dtype());
  const Expr sum = b.reduce_sum(log_prob * labels, axes_between(0, scores.rank()), false);
  if (reduction == "sum") return {-sum, log_prob};
  const std::vector<int64_t> samples = axes_between(0, scores.rank() - 1);
  return {-(sum / count_along(scores, samples, sum.dtype())), log_prob};
}

/// scores, labels, weights? (one a sample) -> loss, log_prob
Results sparse_softmax_cross_entropy(LowerContext& c) {
  Builder& b = c.b;
  const std::string reduction = older_reduction(c);
  const Expr scores = require_input(c, 0);
  const Expr labels = b.reshape(require_input(c, 1), b.ints({-1}));
  const Attributes each = {{"reduction", std::string(c.has_input(2) ? "none" : reduction)}};
  const std::vector<Expr> results =
      b.ops("SoftmaxCrossEntropyLoss", {rows_of_classes(c, scores), labels}, 2, each);
  const Expr log_prob = b.reshape(results[1], b.shape_of(scores));
  if (!c.has_input(2)) return {results[0], log_prob};
  const Expr weights = b.reshape(b.cast(c.inputs[2], results[0].dtype()), b.ints({-1}));
  const Expr sum = b.reduce_sum(results[0] * weights, {0}, false);
  if (reduction == "sum") return {sum, log_prob};
  return {sum / b.reduce_sum(weights, {0}, false), log_prob};
}

/// (exp(log_prob) − label)·dY, divided by the number of rows for reduction mean; labels are
/// one-hot.
Results softmax_cross_entropy_grad(LowerContext& c) {
  Builder& b = c.b;
  const Expr dy = require_input(c, 0), log_prob = require_input(c, 1);
  const std::string reduction = older_reduction(c);
  const Expr difference = b.op("Exp", {log_prob}) - b.cast(require_input(c, 2), log_prob.dtype());
  const Expr share =
      reduction == "mean"
          ? dy / count_along(log_prob, axes_between(0, log_prob.rank() - 1), dy.dtype())
          : dy;
  return {difference * b.cast(share, difference.dtype())};
}

Results sparse_softmax_cross_entropy_grad(LowerContext& c) {
  Builder& b = c.b;
  if (c.has_input(3)) refuse(c, "a weight for each sample");
  const Expr log_prob = require_input(c, 1);
  const Expr flat = rows_of_classes(c, log_prob);
  const Expr labels = b.reshape(require_input(c, 2), b.ints({-1}));
  const Expr grad =
      b.ops("SoftmaxCrossEntropyLossGrad", {b.to_math(require_input(c, 0)), flat, labels}, 1,
            chosen_attributes(c, {"reduction"}), kHalfnoteDomain)[0];
  return {b.reshape(grad, b.shape_of(log_prob))};
}

}  // namespace halfnote::foreign
