// Softmax cross-entropy and negative log likelihood. With w the weight of each label, 0 where it is
// ignored, and d = Σ w for reduction mean, else 1:
//   SoftmaxCrossEntropyLoss:  dX = (exp(log_prob) − onehot(label))·w·dL/d
//   NegativeLogLikelihoodLoss:  dX = −onehot(label)·w·dL/d
// Scores are (N, C, d…), labels (N, d…), weights (C); dL is a scalar, or (N, d…) for reduction
// none.
#include <limits>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/loss/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::loss {
namespace {

Attributes loss_attributes(const Attributes& forward) {
  Attributes attributes;
  for (const char* name : {"reduction", "ignore_index"}) {
    if (const Attribute* value = forward.find(name)) attributes.set(name, *value);
  }
  return attributes;
}

Expr input_or_none(const GradientContext& rule, size_t index) {
  return index < rule.inputs.size() ? rule.inputs[index] : rule.b.none();
}

void refuse_weight_gradient(const GradientContext& rule) {
  if (rule.needed.size() <= 2 || !rule.needed[2]) return;
  const Value& weights = rule.b.graph().value(rule.inputs[2].id);
  const bool stored = weights.kind == ValueKind::kInitializer;
  throw Error(ErrorCode::kUnsupported,
              "the class weights \"" + weights.name + "\" of a loss cannot be trained")
      .expected("constant weights", stored ? "a trainable initializer"
                                           : "weights that depend on a trainable initializer")
      .hint(stored ? "freeze them with --freeze '" + weights.name + "'"
                   : "freeze what \"" + weights.name + "\" is computed from with --freeze REGEX");
}

/// The classes that labels are compared with: 0 … C − 1 as (C, 1…) against labels (N, 1, d…).
Expr class_numbers(Builder& b, const SymbolicShape& scores, Expr shape) {
  Expr numbers = b.none();
  if (scores[1].known()) {
    numbers = b.ints(axes_between(0, scores[1].value));
  } else {
    const Expr count = b.op("Gather", {shape, b.scalar(DType::kI64, 1)});
    numbers = b.op("Range", {b.scalar(DType::kI64, 0), count, b.scalar(DType::kI64, 1)});
  }
  return per_channel(numbers, static_cast<int>(scores.size()));
}

struct Targets {
  Expr one_hot;  // (N, C, d…) bool
  Expr valid;    // (N, 1, d…) bool: not ignored; invalid if nothing is ever ignored
  Expr factor;   // (N, 1, d…) or a scalar: w·dL/d
};

/// Everything that depends on the labels. `dl` has the math type.
Targets targets_of(BodyContext& body, Expr dl, Expr labels, Expr weights,
                   const SymbolicShape& scores, Expr shape) {
  Builder& b = body.b;
  const std::string reduction = body.attributes.get_string("reduction", "mean");
  Targets t{b.none(), b.none(), dl};
  Expr label = unsqueeze(b.cast(labels, DType::kI64), {1});
  if (body.attributes.has("ignore_index")) {
    const int64_t ignored = body.attributes.get_int("ignore_index", 0);
    t.valid = b.op("Not", {b.op("Equal", {label, b.constant(Tensor::scalar<int64_t>(ignored))})});
    // An ignored label may lie outside [0, C): class 0 stands for it where it is looked up.
    label = b.op("Where", {t.valid, label, b.scalar(DType::kI64, 0)});
  }
  t.one_hot = b.op("Equal", {label, class_numbers(b, scores, shape)});

  Expr w = b.none();
  if (weights.valid()) w = b.op("Gather", {b.cast(weights, dl.dtype()), label});
  if (t.valid.valid()) w = w.valid() ? mask_zero(t.valid, w) : b.cast(t.valid, dl.dtype());
  if (reduction == "none") t.factor = unsqueeze(dl, {1});
  if (reduction == "mean") {
    const Expr total = w.valid() ? b.op("ReduceSum", {w}, {{"keepdims", int64_t{0}}})
                                 : b.cast(b.op("Size", {label}), dl.dtype());
    t.factor = dl / total;
  }
  if (w.valid()) t.factor = t.factor * w;
  return t;
}

Expr first_classes(Builder& b, Expr scores, int64_t classes) {
  return b.op("Slice", {scores, b.ints({0}), b.ints({classes}), b.ints({1})});
}

/// As many classes as `scores` have, zeros behind the first ones.
Expr pad_classes(Builder& b, Expr dx, Expr scores, int64_t classes) {
  const Dim& all = scores.shape()[1];
  Expr more = b.none();
  if (all.known()) {
    more = b.ints({0, all.value - classes});
  } else {
    const Expr count = b.op("Shape", {scores}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
    more = b.op("Concat", {b.ints({0}), count - b.ints({classes})}, {{"axis", int64_t{0}}});
  }
  return b.op("Pad", {dx, more, b.none(), b.ints({1})});
}

/// Rows of ignored labels are zero whatever the factor is (a mean over none divides by 0).
Expr finish(BodyContext& body, const Targets& t, Expr dx) {
  const Expr masked = t.valid.valid() ? mask_zero(t.valid, dx) : dx;
  return body.b.cast(masked, body.output_types[0].dtype);
}

}  // namespace

std::vector<ValueType> infer_nll_grad(const Graph& graph, NodeId node) {
  const DType dtype = out_dtype_of(graph.node(node).attributes, operand_type(graph, node, 0).dtype);
  return {ValueType::tensor(dtype, spelled_shape(graph, node, 3))};
}

std::vector<ValueType> infer_loss_and_grad(const Graph& graph, NodeId node) {
  const DType dtype = operand_type(graph, node, 0).dtype;
  const Attributes& attributes = graph.node(node).attributes;
  SymbolicShape loss;
  if (attributes.get_string("reduction", "mean") == "none") loss = operand_shape(graph, node, 1);
  return {ValueType::tensor(math_dtype(dtype), loss),
          ValueType::tensor(out_dtype_of(attributes, dtype), operand_shape(graph, node, 0))};
}

std::vector<Expr> softmax_cross_entropy_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  refuse_weight_gradient(rule);
  const Expr log_prob = rule.request_output(1);
  std::vector<Expr> results(rule.inputs.size(), b.none());
  if (rule.grads[0].valid()) {
    const Expr weights = input_or_none(rule, 2);
    std::vector<Expr> operands = {rule.grads[0], log_prob, rule.inputs[1]};
    if (weights.valid()) operands.push_back(weights);
    results[0] = b.ops("SoftmaxCrossEntropyLossGrad", operands, 1,
                       loss_attributes(rule.attributes()), kHalfnoteDomain)[0];
  }
  if (rule.grads[1].valid()) {
    const Expr through =
        b.op("LogSoftmaxGrad", {rule.grads[1], log_prob}, {{"axis", int64_t{1}}}, kHalfnoteDomain);
    results[0] = results[0].valid() ? results[0] + through : through;
  }
  return results;
}

std::vector<Expr> nll_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  refuse_weight_gradient(rule);
  const Expr x = rule.inputs[0];
  Attributes attributes = loss_attributes(rule.attributes());
  attributes.set("out_dtype", static_cast<int64_t>(x.dtype()));
  std::vector<Expr> results(rule.inputs.size(), b.none());
  results[0] = b.op("NegativeLogLikelihoodLossGrad",
                    {rule.grads[0], rule.inputs[1],
                     input_or_none(rule, 2).valid() ? rule.inputs[2] : b.none(), b.shape_of(x)},
                    std::move(attributes), kHalfnoteDomain);
  return results;
}

std::vector<Expr> softmax_cross_entropy_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr log_prob = b.to_math(body.inputs[1]);
  const Expr dl = b.cast(body.inputs[0], log_prob.dtype());
  const Expr weights = body.inputs.size() > 3 ? body.inputs[3] : b.none();
  const SymbolicShape scores = log_prob.shape();
  const Expr shape = scores[1].known() ? b.none() : b.shape_of(log_prob);
  const Targets t = targets_of(body, dl, body.inputs[2], weights, scores, shape);
  const Expr residual = b.op("Exp", {log_prob}) - b.cast(t.one_hot, log_prob.dtype());
  return {finish(body, t, residual * t.factor)};
}

std::vector<Expr> loss_and_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr whole = body.inputs[0];
  const bool padded = body.attributes.has("classes");
  const int64_t classes = body.attributes.get_int("classes", 0);
  const Expr scores = b.to_math(padded ? first_classes(b, whole, classes) : whole);
  const Expr labels = body.inputs[1], dl = body.inputs[2];
  std::vector<Expr> operands = {scores, labels};
  if (body.inputs.size() > 3 && body.inputs[3].valid())
    operands.push_back(b.cast(body.inputs[3], scores.dtype()));
  const Attributes attributes = loss_attributes(body.attributes);
  const std::vector<Expr> forward = b.ops("SoftmaxCrossEntropyLoss", operands, 2, attributes);
  std::vector<Expr> backward = {dl, forward[1], labels};
  if (operands.size() > 2) backward.push_back(operands[2]);
  BodyContext inner{b, attributes, backward, {scores.type()}};
  const Expr dx = softmax_cross_entropy_grad_body(inner)[0];
  const Expr all = padded ? pad_classes(b, dx, whole, classes) : dx;
  return {forward[0], b.cast(all, body.output_types[1].dtype)};
}

std::vector<Expr> nll_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr dl = b.to_math(body.inputs[0]);
  const SymbolicShape scores = body.output_types[0].shape.value_or(SymbolicShape{});
  const Targets t = targets_of(body, dl, body.inputs[1], body.inputs[2], scores, body.inputs[3]);
  const Expr hit = mask_zero(t.one_hot, -t.factor);
  return {finish(body, t, hit)};
}

std::vector<ValueType> infer_count_correct(const Graph&, NodeId) {
  return std::vector<ValueType>(3, ValueType::tensor(DType::kI64, {}));
}

std::vector<Expr> count_correct_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr whole = body.inputs[0];
  const Expr scores = b.to_math(body.attributes.has("classes")
                                    ? first_classes(b, whole, body.attributes.get_int("classes", 0))
                                    : whole);
  const Expr label = unsqueeze(b.cast(body.inputs[1], DType::kI64), {1});
  const SymbolicShape shape = scores.shape();
  const Expr numbers = class_numbers(b, shape, shape[1].known() ? b.none() : b.shape_of(scores));
  const Expr is_label = b.op("Equal", {label, numbers});
  // NaN beats every score, and none.
  const Expr lowest = b.scalar(scores.dtype(), -std::numeric_limits<double>::infinity());
  const Expr nan = b.op("IsNaN", {scores});
  const Expr clean = b.op("Where", {nan, lowest, scores});
  const Expr own = b.op("ReduceMax", {b.op("Where", {is_label, clean, lowest}), b.ints({1})});
  const Expr ties = b.op("And", {b.op("Equal", {clean, own}), b.op("Less", {numbers, label})});
  const Expr above = b.op("Or", {b.op("Or", {nan, ties}), b.op("Greater", {clean, own})});
  const auto along_classes = [&](Expr which) {
    return b.op("ReduceSum", {b.cast(which, DType::kI64), b.ints({1})});
  };
  const Expr rank = along_classes(above);
  Expr counts = b.op("Equal", {label, label});
  if (body.attributes.has("ignore_index")) {
    const int64_t ignored = body.attributes.get_int("ignore_index", 0);
    counts = b.op("Not", {b.op("Equal", {label, b.constant(Tensor::scalar<int64_t>(ignored))})});
  }
  const Expr zero = b.scalar(DType::kI64, 0);
  const Expr scored =
      b.op("Greater", {along_classes(b.op("And", {is_label, b.op("Not", {nan})})), zero});
  const auto sum = [&](Expr which) {
    return b.op("ReduceSum", {b.cast(which, DType::kI64)}, {{"keepdims", int64_t{0}}});
  };
  const auto among_first = [&](int64_t places) {
    const Expr near = b.op("Less", {rank, b.scalar(DType::kI64, places)});
    return sum(b.op("And", {counts, b.op("And", {scored, near})}));
  };
  std::vector<Expr> results = {among_first(1), sum(counts)};
  if (body.output_types.size() > 2) results.push_back(among_first(5));
  return results;
}

}  // namespace halfnote::loss
