// The way of a random problem: inputs, growth by families, a loss over what nobody reads, settings.
#include "tests/random/problem.h"

#include <string>

#include "compiler/onnx/schema.h"
#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

using Ints = std::vector<int64_t>;

constexpr void (*kFamilies[])(Growth&) = {
    grow_elementwise,   grow_elementwise, grow_elementwise, grow_contraction, grow_contraction,
    grow_normalization, grow_reduction,   grow_movement,    grow_movement,    grow_places,
    grow_places,        grow_picture,     grow_stateful,    grow_control,     grow_container};

Shape input_shape(Growth& g) {
  Shape shape;
  for (int rank = g.between(0, 9); rank > 0 && shape.size() < 4; rank -= 2) {
    shape.push_back(g.size());
  }
  if (shape.empty() && g.chance(80)) shape = {3, 5};
  return shape;
}

/// Values that nobody reads, the last ones first, at most four.
std::vector<Expr> loose_ends(Growth& g) {
  std::vector<Expr> ends;
  for (size_t i = g.pool().size(); i > 0 && ends.size() < 4; --i) {
    const Expr x = g.pool()[i - 1];
    if (!g.graph().has_uses(x.id) && g.graph().value(x.id).kind == ValueKind::kResult) {
      ends.push_back(x);
    }
  }
  return ends;
}

Expr cross_entropy(Growth& g, Expr x) {
  const Shape s = g.shape(x);
  const int64_t classes = s.back(), rows = element_count(s) / classes;
  const Ints goal = {rows, classes};
  const Expr logits = g.op("Reshape", {x, g.constant_of(Tensor::of<int64_t>({2}, goal))});
  Tensor labels(DType::kI64, {rows});
  for (int64_t& label : labels.mutable_data<int64_t>()) label = g.pick(static_cast<int>(classes));
  const Expr target = g.input("labels", labels);
  static constexpr const char* kHow[] = {"mean", "sum", "mean"};
  const Attributes how = {{"reduction", std::string(g.one_of(kHow))}};
  if (g.chance(70)) return g.op("SoftmaxCrossEntropyLoss", {logits, target}, how);
  const Expr shares = g.op("LogSoftmax", {logits}, {{"axis", int64_t{-1}}});
  return g.op("NegativeLogLikelihoodLoss", {shares, target}, how);
}

Expr reduced(Growth& g, Expr x) {
  Expr value = x;
  if (g.chance(40)) value = g.op("Mul", {x, x});
  if (g.chance(30)) value = g.op("Mul", {value, g.constant(g.shape(value))});
  const bool empty = element_count(g.shape(x)) == 0;
  return g.op(empty || g.chance(20) ? "ReduceSum" : "ReduceMean", {value},
              {{"keepdims", int64_t{0}}});
}

/// One term of the loss; false where its value is too large.
bool add_term(Growth& g, Expr end, std::vector<Expr>& terms) {
  const Shape s = g.shape(end);
  const size_t inputs = g.graph().inputs().size();
  try {
    const bool classes = !s.empty() && s.back() >= 2 && element_count(s) > 0 && terms.empty();
    terms.push_back(classes && g.chance(40) ? cross_entropy(g, end) : reduced(g, end));
    return true;
  } catch (const Misfit&) {
    if (g.graph().inputs().size() != inputs) throw;  // an input too many: another seed
    return false;
  }
}

void set_optimizer(Growth& g, Optimizer& o) {
  static constexpr const char* kKinds[] = {"sgd",   "momentum", "nesterov",  "adam",
                                           "adamw", "hf_adamw", "adagrad",   "rmsprop",
                                           "lamb",  "lion",     "adafactor", "deepspeed_lamb"};
  o.kind = g.one_of(kKinds);
  o.lr = 0.0625f;
  if (g.chance(30)) o.weight_decay = 0.125f;
  if (g.chance(30)) o.clip_norm = 0.5f;
  if (g.chance(20)) o.no_decay_on_1d = true;
  if (o.kind == "rmsprop" && g.chance(50)) o.centered = true;
  if (o.kind == "rmsprop" && g.chance(50)) o.momentum = 0.5f;
  if (g.chance(20)) {
    o.schedule.kind = "cosine";
    o.schedule.warmup = 2;
    o.schedule.total = 10;
  }
}

/// Another parameter of the same shape is the same one.
void tie(Growth& g, TrainOptions& train) {
  std::vector<ValueId> weights;
  for (ValueId id : g.graph().initializers()) {
    if (g.graph().value(id).trainable) weights.push_back(id);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    for (size_t j = i + 1; j < weights.size() && train.tied.empty(); ++j) {
      Value& a = g.graph().value(weights[i]);
      Value& b = g.graph().value(weights[j]);
      if (a.tensor.shape() != b.tensor.shape()) continue;
      b.tensor = a.tensor;
      train.tied = {a.name + "=" + b.name};
    }
  }
}

/// Ours, or the first that has the youngest op of the graph.
int64_t opset_of(const Graph& graph) {
  int64_t opset = kOpsetVersion;
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    if (!node.domain.empty() || has_schema("", node.op)) continue;
    opset = std::max(opset, find_schema_version(node.op, newest_opset(""))->since);
  }
  return opset;
}

bool attempt(uint64_t seed, Problem& problem) {
  Growth g(seed);
  problem = {};
  problem.seed = seed;
  const int inputs = g.between(1, 3);
  for (int i = 0; i < inputs; ++i) {
    g.keep(g.input("x" + std::to_string(i), g.numbers(input_shape(g), 1.5)));
  }
  const int nodes = g.chance(50) ? g.between(3, 12) : g.between(8, 32);
  for (int tries = 0; tries < 200 && static_cast<int>(g.graph().node_count()) < nodes; ++tries) {
    g.grow(g.one_of(kFamilies));
  }
  finish(g, problem);
  problem.inputs = g.inputs();
  bool trains = false;
  for (ValueId id : g.graph().initializers()) trains |= g.graph().value(id).trainable;
  problem.model.graph = std::move(g.graph());
  problem.model.graph.name = "random";
  problem.model.opsets[""] = opset_of(problem.model.graph);
  problem.model.source = "random " + std::to_string(seed);
  return trains && !problem.model.graph.outputs().empty();
}

}  // namespace

void finish(Growth& g, Problem& problem) {
  problem.train.trainable = {"w[0-9]+"};
  set_optimizer(g, problem.train.optimizer);
  const std::vector<Expr> ends = loose_ends(g);
  if (ends.empty()) throw Misfit();
  if (g.chance(15) && element_count(g.shape(ends[0])) > 0) {
    static constexpr const char* kLosses[] = {"mse", "l1", "huber", "bce_with_logits"};
    problem.train.loss = g.one_of(kLosses);
    g.graph().set_outputs(g.graph().main(), {ends[0].id});
    return;
  }
  std::vector<Expr> terms;
  for (const Expr& end : ends) add_term(g, end, terms);
  if (terms.empty()) throw Misfit();
  const Expr loss = terms.size() == 1 ? g.op("Identity", terms) : g.op("Sum", terms);
  g.graph().rename(loss.id, "loss");
  std::vector<ValueId> outputs = {loss.id};
  if (g.chance(40)) outputs.push_back(ends[0].id);
  g.graph().set_outputs(g.graph().main(), outputs);
  problem.train.loss_outputs = {"loss"};
  if (g.chance(15)) tie(g, problem.train);
}

Problem random_problem(uint64_t seed) {
  Problem problem;
  for (uint64_t again = 0;; ++again) {
    try {
      if (attempt(seed + (again << 40), problem)) break;
    } catch (const Misfit&) {
    }
  }
  problem.seed = seed;
  return problem;
}

std::vector<Tensor> inputs_of(const Problem& problem, const Graph& step) {
  std::vector<Tensor> inputs;
  const auto& own = problem.model.graph.inputs();
  for (ValueId id : step.inputs()) {
    const Value& value = step.value(id);
    Tensor found;
    for (size_t i = 0; i < own.size(); ++i) {
      if (problem.model.graph.value(own[i]).name == value.name) found = problem.inputs[i];
    }
    if (!found.defined()) {
      Tensor target(DType::kF32, concrete(*value.type.shape));
      float next = 0.125f;
      for (float& x : target.mutable_data<float>()) {
        x = next;
        next = next > 0.75f ? next - 0.6875f : next + 0.3125f;
      }
      found = std::move(target);
    }
    inputs.push_back(found.dtype() == value.type.dtype ? found : found.cast_to(value.type.dtype));
  }
  return inputs;
}

}  // namespace halfnote::random
