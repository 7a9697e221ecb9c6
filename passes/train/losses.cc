// The losses, each a few standard ops in f32 (f64 for f64 models); y is the output, t the target:
//
//   cross_entropy    SoftmaxCrossEntropyLoss (logits, labels)      label smoothing e:
//   nll              NegativeLogLikelihoodLoss (log-prob, labels)    (1−e)·loss − e·mean(log-prob)
//                    a label `ignore_index` counts in neither mean; with
//                    `class_axis` -1 the axes before the last are flattened, those of t as well;
//                    where the model flattened (N, T, C) to (N·T, C) itself, t is (N, T)
//   mse              mean((y − t)²)
//   l1               mean(|y − t|)
//   huber            mean(m·(a − m/2)),  a = |y − t|, m = min(a, delta)
//   bce_with_logits  mean((1 − t)·softplus(y) + t·softplus(−y))
//   kl               Σ t·(log t − y) / N,  y log-probabilities
//
// The usual stable form of bce_with_logits, max(y, 0) − y·t + log1p(exp(−|y|)), is the same number,
// but its gradient from parts is wrong at y = 0, where a fresh zero-initialised head stands:
// neither max nor |.| has a derivative there. Softplus is log1p(exp(.)) in its stable form, and for
// t in [0, 1] both terms are non-negative, so nothing cancels. Huber's form has the right
// derivative at a = delta whichever side Min takes.
#include "passes/train/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/ir/query.h"
#include "passes/settings.h"

namespace halfnote {
namespace {

using std::string;

enum class Target : uint8_t { kClasses, kSameType };

/// `y` is in math precision; `t` the labels (i64), or the target in math precision.
using LossRule = Expr (*)(Builder& b, Expr y, Expr t, const TrainOptions& train);

struct LossRow {
  std::string_view name;
  Target target;
  LossRule rule;
  /// An activation that the loss holds itself: where the output is its result, the loss reads
  /// its input (null: none); and what stands in for it (null: nothing).
  const char* absorbs = nullptr;
  const char* instead = nullptr;
  /// Where it holds none: the loss to take where the output is the result of `absorbs`.
  const char* rather = nullptr;
};

Expr mean(Expr x) { return x.builder->op("ReduceMean", {x}, {{"keepdims", int64_t{0}}}); }
Expr magnitude(Expr x) { return x.builder->op("Abs", {x}); }

Attributes mean_of_counted(const TrainOptions& train) {
  return {{"reduction", string("mean")}, {"ignore_index", train.ignore_index}};
}

/// (1 − e)·loss + e·(mean over classes, and over the samples that count, of −log-prob): PyTorch's
/// smoothing.
Expr smoothed(Builder& b, Expr loss, Expr log_prob, Expr labels, const TrainOptions& train) {
  const double e = train.label_smoothing;
  if (e == 0) return loss;
  const Attributes keep_none = {{"keepdims", int64_t{0}}};
  const Expr means = b.op("ReduceMean", {log_prob, b.ints({1})}, keep_none);
  const Expr ignored = b.constant(Tensor::scalar<int64_t>(train.ignore_index), "ignore_index");
  const Expr counts = b.op("Not", {b.op("Equal", {labels, ignored})});
  const Expr counted = b.op("Where", {counts, means, b.scalar(means.dtype(), 0)});
  const Expr number = b.op("ReduceSum", {b.cast(counts, means.dtype())}, keep_none);
  return loss * (1 - e) - b.op("ReduceSum", {counted}, keep_none) / number * e;
}

Expr cross_entropy(Builder& b, Expr y, Expr t, const TrainOptions& train) {
  const Attributes attributes = mean_of_counted(train);
  if (train.label_smoothing == 0) return b.op("SoftmaxCrossEntropyLoss", {y, t}, attributes);
  const auto results = b.ops("SoftmaxCrossEntropyLoss", {y, t}, 2, attributes);
  return smoothed(b, results[0], results[1], t, train);
}

Expr nll(Builder& b, Expr y, Expr t, const TrainOptions& train) {
  const Expr loss = b.op("NegativeLogLikelihoodLoss", {y, t}, mean_of_counted(train));
  return smoothed(b, loss, y, t, train);
}

Expr mse(Builder&, Expr y, Expr t, const TrainOptions&) {
  const Expr difference = y - t;
  return mean(difference * difference);
}

Expr l1(Builder&, Expr y, Expr t, const TrainOptions&) { return mean(magnitude(y - t)); }

Expr huber(Builder& b, Expr y, Expr t, const TrainOptions& train) {
  const Expr a = magnitude(y - t);
  const Expr m = b.op("Min", {a, b.scalar(y.dtype(), train.huber_delta)});
  return mean(m * (a - m * 0.5));
}

Expr bce_with_logits(Builder& b, Expr y, Expr t, const TrainOptions&) {
  const Expr negative = (1.0 - t) * b.op("Softplus", {y});
  const Expr positive = t * b.op("Softplus", {-y});
  return mean(negative + positive);
}

Expr kl(Builder& b, Expr y, Expr t, const TrainOptions&) {
  // 0·log 0 is 0: the logarithm reads nothing below the smallest normal number.
  const Expr smallest = b.scalar(y.dtype(), std::numeric_limits<float>::min());
  const Expr log_t = b.op("Log", {b.op("Max", {t, smallest})});
  const Expr total = b.op("ReduceSum", {t * (log_t - y)}, {{"keepdims", int64_t{0}}});
  const Dim& samples = y.shape().front();
  if (samples.known()) return total / static_cast<double>(samples.value);
  const Expr count = b.op("Shape", {y}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  const Expr scalar = b.op("Squeeze", {count});
  return total / b.cast(scalar, y.dtype());
}

constexpr LossRow kLosses[] = {
    {"cross_entropy", Target::kClasses, cross_entropy, "Softmax"},
    {"nll", Target::kClasses, nll, "Softmax", nullptr, "cross_entropy"},
    {"mse", Target::kSameType, mse},
    {"l1", Target::kSameType, l1},
    {"huber", Target::kSameType, huber},
    {"bce_with_logits", Target::kSameType, bce_with_logits, "Sigmoid"},
    {"kl", Target::kSameType, kl, "Softmax", "LogSoftmax"},
};

const LossRow& loss_row(const string& name) {
  std::vector<string> names;
  string list;
  for (const LossRow& row : kLosses) {
    if (row.name == name) return row;
    names.emplace_back(row.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  const std::string_view near = closest(name, names);
  throw SettingError("train.loss",
                     {"{train.loss} names no loss", list, "\"" + name + "\"",
                      near.empty() ? "a loss that is in the graph is named by {train.loss_output}"
                                   : "did you mean " + string(near) + "?"});
}

/// What stands between an output and the activation behind it: nodes that only move numbers (or
/// bound them), from the output on, and the activation last. Empty if there is none.
constexpr std::array<std::string_view, 10> kMoves = {
    "Identity", "Cast",      "Squeeze", "Unsqueeze", "Reshape",
    "Flatten",  "Transpose", "Gather",  "Slice",     "Expand"};
/// These give other numbers besides: behind them the loss cannot hold the activation.
constexpr std::array<std::string_view, 3> kMixes = {"Clip", "Pad", "Concat"};

template <class Ops>
bool is_one_of(const Node& node, const Ops& ops) {
  return std::find(ops.begin(), ops.end(), node.op) != ops.end();
}

std::vector<NodeId> path_to_activation(const Graph& graph, ValueId from, std::string_view op) {
  std::vector<NodeId> path;
  while (graph.value(from).producer.valid()) {
    path.push_back(graph.value(from).producer);
    const Node& node = graph.node(path.back());
    if (!node.domain.empty()) break;
    if (node.op == op) return path;
    if (!is_one_of(node, kMoves) && !is_one_of(node, kMixes)) break;
    from = graph.input(path.back(), 0);
  }
  return {};
}

constexpr std::array<std::string_view, 3> kContractions = {"MatMul", "Gemm", "Conv"};

/// The contraction whose result the value is, behind nodes that move numbers and a bias: scores of
/// any size, no log-probabilities. Invalid if there is none.
NodeId scores_maker(const Graph& graph, ValueId from) {
  bool biased = false;
  while (graph.value(from).producer.valid()) {
    const NodeId id = graph.value(from).producer;
    const Node& node = graph.node(id);
    if (!node.domain.empty()) return {};
    if (is_one_of(node, kContractions)) return id;
    size_t operand = 0;
    if (node.op == "Add" && !biased) {
      // What is computed beside it may make log-probabilities of scores.
      const bool first = graph.value(graph.input(id, 0)).producer.valid();
      if (first && graph.value(graph.input(id, 1)).producer.valid()) return {};
      biased = true;
      operand = first ? 0 : 1;
    } else if (!is_one_of(node, kMoves)) {
      return {};
    }
    from = graph.input(id, operand);
  }
  return {};
}

/// The axes of a Squeeze or Unsqueeze as numbers below `rank`; nothing where they are not known.
std::optional<std::vector<int64_t>> axes_of(const Graph& graph, NodeId id, int64_t rank) {
  const Tensor* axes = graph.constant(graph.input(id, 1));
  if (axes == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < axes->size(); ++i) {
    const int64_t axis = axes->at_as_int(i);
    numbers.push_back(axis < 0 ? axis + rank : axis);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// Where an axis of the operand is in the result of a node that moves numbers; -1 where that cannot
/// be told, or there is no such axis.
int64_t moved_axis(const Graph& graph, NodeId id, int64_t axis) {
  const Node& node = graph.node(id);
  const ValueType& from = graph.value(graph.input(id, 0)).type;
  const ValueType& to = graph.value(graph.output(id)).type;
  if (node.op == "Identity" || node.op == "Cast") return axis;
  if (!from.shape || !to.shape) return -1;
  const auto rank = static_cast<int64_t>(from.shape->size());
  const auto result = static_cast<int64_t>(to.shape->size());
  if (node.op == "Transpose") {
    std::vector<int64_t> perm = node.attributes.get_ints("perm", {});
    if (perm.empty()) return rank - 1 - axis;
    return std::find(perm.begin(), perm.end(), axis) - perm.begin();
  }
  if (node.op == "Squeeze" || node.op == "Unsqueeze") {
    const bool adds = node.op == "Unsqueeze";
    const auto axes = axes_of(graph, id, adds ? result : rank);
    if (!axes) return -1;
    int64_t moved = axis;
    for (const int64_t each : *axes) {
      if (!adds && each == axis) return -1;
      if (adds && each <= moved) ++moved;
      if (!adds && each < axis) --moved;
    }
    return moved;
  }
  // Reshape and Flatten keep the last axis where its size stays.
  const bool keeps = rank > 0 && result > 0 && axis == rank - 1 && from.shape->back().known() &&
                     to.shape->back() == from.shape->back();
  return keeps ? result - 1 : -1;
}

/// The same nodes that move numbers, of another value.
Expr moved_like(Builder& b, const std::vector<NodeId>& path, Expr value) {
  const Graph& graph = b.graph();
  for (auto at = path.rbegin() + 1; at != path.rend(); ++at) {
    std::vector<Expr> inputs = {value};
    for (size_t i = 1; i < graph.inputs(*at).size(); ++i) {
      inputs.push_back(b.value(graph.input(*at, static_cast<uint32_t>(i))));
    }
    value = b.ops(graph.node(*at).op, inputs, 1, Attributes(graph.node(*at).attributes))[0];
  }
  return value;
}

/// Why the loss cannot hold the activation itself; empty if it can: element by element always, a
/// softmax where it is taken over the axis that the loss takes for the classes.
string why_not_held(const Graph& graph, const LossRow& row, const std::vector<NodeId>& path,
                    const CompileOptions& options) {
  for (auto at = path.begin(); at + 1 != path.end(); ++at) {
    if (is_one_of(graph.node(*at), kMixes)) return " behind a " + graph.node(*at).op;
  }
  if (row.target != Target::kClasses) return {};
  const ValueType& scores = graph.value(graph.output(path.front())).type;
  const ValueType& type = graph.value(graph.output(path.back())).type;
  if (!scores.shape || !type.shape) return path.size() == 1 ? "" : " of unknown rank";
  int64_t axis = graph.node(path.back()).attributes.get_int("axis", -1);
  if (axis < 0) axis += static_cast<int64_t>(type.shape->size());
  for (auto at = path.rbegin() + 1; at != path.rend() && axis >= 0; ++at)
    axis = moved_axis(graph, *at, axis);
  const auto rank = static_cast<int64_t>(scores.shape->size());
  if (axis == (options.train.class_axis < 0 ? rank - 1 : 1)) return {};
  const bool last = axis == rank - 1 && options.train.class_axis == 1;
  return string(" over another axis than the classes'") +
         (last ? ", which --class-axis -1 is" : "");
}

void warn_of_no_logs(const Graph& graph, const LossRow& row, ValueId value, NodeId maker,
                     PassContext& context) {
  context.warn(graph.value(value).name,
               string(row.name) + " reads it as log-probabilities, but it is the result of a " +
                   graph.node(maker).op + " (" + graph.label(maker) + "); " +
                   (row.rather != nullptr ? "take --loss " + string(row.rather) + ", or " : "") +
                   "let the model end in a LogSoftmax");
}

/// What the loss reads: of a graph that ends in an activation which the loss holds itself, the
/// value before it.
Expr scores_of(Builder& b, const LossRow& row, ValueId from, PassContext& context) {
  const Graph& graph = b.graph();
  const auto path =
      row.absorbs == nullptr ? std::vector<NodeId>() : path_to_activation(graph, from, row.absorbs);
  const bool wants_logs = row.rather != nullptr || row.instead != nullptr;
  const NodeId other = !path.empty() && row.rather != nullptr ? path.back()
                       : path.empty() && wants_logs           ? scores_maker(graph, from)
                                                              : NodeId{};
  if (other.valid()) warn_of_no_logs(graph, row, from, other, context);
  if (path.empty() || other.valid()) return b.value(from);
  const NodeId activation = path.back();
  const Expr before = b.value(graph.input(activation, 0));
  const string what(row.name);
  if (const string why = why_not_held(graph, row, path, context.options); !why.empty()) {
    const bool logits = row.instead == nullptr;
    context.warn(
        graph.value(from).name,
        what + " reads it as " + (logits ? "logits" : "log-probabilities") +
            ", but it is the result of a " + row.absorbs + " (" + graph.label(activation) + ")" +
            why +
            (logits ? "; name what that reads: --loss-input \"" + graph.value(before.id).name + "\""
                    : "; let the model end in a LogSoftmax"));
    return b.value(from);
  }
  if (row.instead == nullptr) {
    context.note(graph.value(from).name,
                 what + " reads logits: the loss is attached before this " + string(row.absorbs));
    return moved_like(b, path, before);
  }
  context.note(graph.value(from).name, what + " reads log-probabilities: the loss has a " +
                                           string(row.instead) + " of its own in place of this " +
                                           string(row.absorbs));
  const int64_t axis = graph.node(activation).attributes.get_int("axis", -1);
  return moved_like(b, path, b.op(row.instead, {b.to_math(before)}, {{"axis", axis}}));
}

/// Is it (batch, sequence, classes)? ONNX, as PyTorch, takes (N, C, d): classes on axis 1. To be
/// seen where axis 1 is open and the last is not, and where a matrix makes the last axis.
bool has_classes_last(const Graph& graph, const Expr& scores) {
  if (scores.rank() != 3) return false;
  const SymbolicShape& shape = scores.shape();
  if (!shape[1].known() && shape[2].known()) return true;
  const auto producer = [&](ValueId value) { return graph.value(value).producer; };
  NodeId at = producer(scores.id);
  if (at.valid() && graph.node(at).op == "Add") {  // a bias: the other operand is of rank 1
    const bool second = graph.value(graph.input(at, 0)).type.rank() == 1;
    at = producer(graph.input(at, second ? 1 : 0));
  }
  return at.valid() && graph.node(at).op == "MatMul" &&
         graph.value(graph.input(at, 1)).type.rank() == 2;
}

void warn_of_classes(const Graph& graph, const LossRow& row, const Expr& scores,
                     PassContext& context) {
  if (scores.rank() != 3 || !has_classes_last(graph, scores)) return;
  const SymbolicShape& shape = scores.shape();
  context.warn(graph.value(scores.id).name,
               "--loss " + string(row.name) +
                   " takes axis 1 for the classes, as ONNX and PyTorch "
                   "do (N, C, d), but the scores look like (batch, sequence, classes): " +
                   to_string(scores.type()) + ", classes on the last axis, labels " +
                   to_string(ValueType::tensor(DType::kI64, {shape[0], shape[1]})) +
                   "; if so, --class-axis -1");
}

/// `"y", float[N,3]`
string shown(const Expr& value) {
  return "\"" + value.builder->graph().value(value.id).name + "\", " + to_string(value.type());
}

/// Do the classes stand on the last axis of scores that have more than two?
bool has_last_axis(const Expr& scores, const CompileOptions& options) {
  const TrainOptions& train = options.train;
  const int64_t rank = scores.rank();
  const int64_t axis = train.class_axis < 0 ? train.class_axis + rank : train.class_axis;
  if (axis == 1) return false;
  if (axis == rank - 1 && axis > 0) return true;
  throw SettingError("train.class_axis",
                     {"{train.class_axis} is no axis that can count the classes",
                      "1, or -1 for the last",
                      fmt::format("{} of {}", train.class_axis, shown(scores)),
                      {}})
      .named(options);
}

bool is_first_dim_of_input(const Graph& graph, const Dim& dim) {
  const auto inputs = graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [&](ValueId input) {
    const ValueType& type = graph.value(input).type;
    return type.rank() >= 1 && (*type.shape)[0].same_as(dim);
  });
}

/// Does row i of the result follow from row i of operand 0 alone? Said of matrices.
bool keeps_rows(const Node& node) {
  constexpr std::array<std::string_view, 8> kByRows = {"Add",        "Cast",   "Gelu", "Gemm",
                                                       "LogSoftmax", "MatMul", "Relu", "Tanh"};
  return node.domain.empty() && node.attributes.get_int("transA", 0) == 0 &&
         std::find(kByRows.begin(), kByRows.end(), node.op) != kByRows.end();
}

/// The dims (N, T) of scores (N·T, C) that the model made of (N, T, C), with N that of an input.
/// None where the first dim of the scores is one of the inputs' own.
std::optional<SymbolicShape> before_flattening(const Graph& graph, const Expr& scores) {
  if (scores.rank() != 2 || is_first_dim_of_input(graph, scores.shape()[0])) return std::nullopt;
  ValueId at = scores.id;
  for (;;) {
    const SymbolicShape& rows = *graph.value(at).type.shape;
    const NodeId id = graph.value(at).producer;
    if (!id.valid()) return std::nullopt;
    const Node& node = graph.node(id);
    const ValueType& source = graph.value(graph.input(id, 0)).type;
    if (is_op(node, "Reshape") || is_op(node, "Flatten")) {
      if (source.rank() < 3 || !source.shape->back().same_as(rows[1])) return std::nullopt;
      SymbolicShape dims(source.shape->begin(), source.shape->end() - 1);
      return is_first_dim_of_input(graph, dims[0]) ? std::optional(dims) : std::nullopt;
    }
    if (!keeps_rows(node) || source.rank() != 2 || !(*source.shape)[0].same_as(rows[0])) {
      return std::nullopt;
    }
    at = graph.input(id, 0);
  }
}

/// Data comes by samples: an input whose first dim counts none can only be fed whole.
void warn_of_samples(const Graph& graph, ValueId target, bool classes, PassContext& context) {
  const Value& value = graph.value(target);
  if (value.type.rank() < 1 || graph.inputs().size() < 2) return;
  for (ValueId input : graph.inputs()) {
    const ValueType& type = graph.value(input).type;
    if (input == target || !type.shape) continue;
    for (const Dim& dim : *type.shape) {
      if (dim.same_as((*value.type.shape)[0])) return;
    }
  }
  context.warn(value.name,
               to_string(value.type) +
                   ": its first dim is none of the other inputs: if the model flattens samples "
                   "and positions into it, no data can be fed in batches; " +
                   (classes ? "let the model give scores (batch, T, C), and use --class-axis -1"
                            : "let the model keep the batch as the first dim of its output"));
}

/// Scores (N, C) or (N, C, d…) and the labels (N) or (N, d…) that belong to them.
struct Classes {
  Expr scores, labels;
};

/// The scores, and the labels as a new input; where the classes stand last, (N·d…, C) and (N·d…).
Classes with_labels(Builder& b, const LossRow& row, Expr scores, PassContext& context) {
  Graph& graph = b.graph();
  if (scores.rank() < 2) {
    throw Error(ErrorCode::kModel,
                "--loss " + string(row.name) + " needs scores of shape (N, C, …)")
        .expected("rank 2 or more", shown(scores));
  }
  const bool last = has_last_axis(scores, context.options);
  SymbolicShape shape = scores.shape();
  const Dim classes = last ? shape.back() : shape[1];
  shape.erase(last ? shape.end() - 1 : shape.begin() + 1);
  const std::optional<SymbolicShape> unflat = before_flattening(graph, scores);
  const ValueType type = ValueType::tensor(DType::kI64, unflat.value_or(shape));
  const Expr labels = b.value(graph.add_input(graph.main(), graph.unique_name("labels"), type));
  if (unflat) {
    context.note(
        graph.value(labels.id).name,
        to_string(type) + ", one for each position of a sample: the model flattens its scores");
    return {scores, b.reshape(labels, b.ints({-1}))};
  }
  warn_of_samples(graph, labels.id, true, context);
  if (!last) return {scores, labels};
  Expr flat = b.ints({-1, classes.known() ? classes.value : 0});
  if (!classes.known()) {
    const Expr count = b.op("Shape", {scores}, {{"start", int64_t{-1}}});
    flat = b.op("Concat", {b.ints({-1}), count}, {{"axis", int64_t{0}}});
  }
  return {b.reshape(scores, flat), b.reshape(labels, b.ints({-1}))};
}

}  // namespace

ValueId before_rounding(const Graph& graph, ValueId value) {
  const NodeId cast = graph.value(value).producer;
  if (!cast.valid() || !is_cast(graph.node(cast))) return value;
  const ValueId source = graph.input(cast, 0);
  const bool rounds = is_16bit_float(graph.value(value).type.dtype) &&
                      graph.value(source).type.dtype == DType::kF32;
  return rounds ? source : value;
}

void check_loss(const TrainOptions& train) {
  const LossRow& row = loss_row(train.loss);
  const float e = train.label_smoothing;
  const auto refuse = [](const string& key, const char* what, string want, string got) {
    throw SettingError(key, {"{" + key + "} " + what, std::move(want), std::move(got), {}});
  };
  if (!(e >= 0 && e <= 1)) {
    refuse("train.label_smoothing", "is out of range", "a number in [0, 1]", fmt::format("{}", e));
  }
  if (e != 0 && row.target != Target::kClasses) {
    refuse("train.label_smoothing", "needs a loss that reads class labels",
           "{train.loss} cross_entropy or nll", train.loss);
  }
  if (train.class_axis != 1 && row.target != Target::kClasses) {
    refuse("train.class_axis", "needs a loss that reads class labels",
           "{train.loss} cross_entropy or nll", train.loss);
  }
  const float delta = train.huber_delta;
  if (row.name == "huber" && !(delta > 0 && std::isfinite(delta))) {
    refuse("train.huber_delta", "is out of range", "a finite number above 0",
           fmt::format("{}", delta));
  }
}

ValueId attach_named_loss(Graph& graph, ValueId output, PassContext& context) {
  const TrainOptions& train = context.options.train;
  const LossRow& row = loss_row(train.loss);
  check_loss(train);
  Builder b(graph, graph.end(), context.infer);
  b.set_role(Role::kLoss);
  const Expr scores = scores_of(b, row, before_rounding(graph, output), context);
  if (!is_float(scores.dtype())) {
    throw Error(ErrorCode::kModel, "--loss " + train.loss + " needs an output of floats")
        .expected("a float tensor", shown(scores))
        .hint("name the value it reads with --loss-input");
  }
  if (row.target == Target::kClasses) {
    if (train.class_axis == 1) warn_of_classes(graph, row, scores, context);
    const Classes classes = with_labels(b, row, scores, context);
    return row.rule(b, b.to_math(classes.scores), classes.labels, train).id;
  }
  if (row.name == "kl" && scores.rank() < 1) {
    throw Error(ErrorCode::kModel, "--loss kl needs log-probabilities of shape (N, …)")
        .expected("rank 1 or more", shown(scores));
  }
  const ValueType type = ValueType::tensor(b.value(output).dtype(), scores.shape());
  const Expr target = b.value(graph.add_input(graph.main(), graph.unique_name("target"), type));
  warn_of_samples(graph, target.id, false, context);
  return row.rule(b, b.to_math(scores), b.to_math(target), train).id;
}

}  // namespace halfnote
