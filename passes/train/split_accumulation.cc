// split_accumulation: one step over N micro-batches becomes two.
//
//   step: x -> grad/w -> w'     ──▶   accumulate: x -> grad/w,  sum/w' = sum/w + grad/w
//                                     apply:      grad/w = sum/w · 1/N -> w',  sum/w' = 0
//
// Only `apply` commits. Running statistics are kept pending: `accumulate` moves a copy, `apply`
// takes it over (or, when the step is not finite, takes the committed ones back). `attempted_step`
// counts micro-batches. Exact where N is a power of two. Leaves alone: models without a step, and
// accumulation 1.
#include "base/error.h"
#include "passes/passes.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

/// Gradients are the float values that cross from the backward pass to the optimizer.
std::vector<ValueId> gradients_of(const Graph& graph) {
  std::vector<ValueId> found;
  for (NodeId node : graph.nodes()) {
    if (graph.node(node).role == Role::kOptimizer) continue;
    for (ValueId output : graph.outputs(node)) {
      if (!output.valid()) continue;
      bool crosses = false;
      for (const Use& use : graph.uses(output)) {
        crosses |= use.by_node() && graph.node(use.node()).role == Role::kOptimizer;
      }
      if (crosses) found.push_back(output);
    }
  }
  return found;
}

std::string sum_name(const Graph& graph, ValueId gradient) {
  std::string name = graph.value(gradient).name;
  if (name.starts_with(kGradientPrefix)) name = name.substr(kGradientPrefix.size());
  return std::string(kSumPrefix) + name;
}

/// Takes away the nodes that nothing needs any more; outputs and states are kept.
void drop_unused(Graph& graph) {
  std::vector<NodeId> nodes = graph.nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    bool used = false;
    for (ValueId output : graph.outputs(*node)) used |= output.valid() && graph.has_uses(output);
    if (!used) graph.remove(*node);
  }
  for (ValueId value : graph.initializers()) {
    if (!graph.has_uses(value) && !graph.state_of(value)) graph.remove_value(value);
  }
}

/// The forward and backward pass of one micro-batch.
Graph make_accumulate(const Graph& step, const std::vector<ValueId>& gradients,
                      PassContext& context) {
  Graph graph = step;
  Builder b(graph, graph.end(), context.infer);
  b.set_role(Role::kOptimizer);
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) {
    const NodeId producer = graph.value(output).producer;
    if (!producer.valid() || graph.node(producer).role != Role::kOptimizer)
      outputs.push_back(output);
  }
  graph.set_outputs(graph.main(), outputs);
  for (uint32_t i = static_cast<uint32_t>(graph.states().size()); i-- > 0;) {
    const State state = graph.states()[i];
    if (state.kind == StateKind::kWeight || state.kind == StateKind::kMoment ||
        state.kind == StateKind::kCounter) {
      graph.remove_state(i);
      graph.value(state.current).trainable = state.kind == StateKind::kWeight;
    } else if (state.kind == StateKind::kStatistic) {
      // The normalization reads and moves the pending copy.
      graph.remove_state(i);
      const std::string name = graph.value(state.current).name;
      graph.rename(state.current, graph.unique_name(std::string(kPendingPrefix) + name));
      graph.add_state(state.current, state.next, StateKind::kStatistic);
    }
  }
  for (ValueId gradient : gradients) {
    const ValueType& type = graph.value(gradient).type;
    const ValueId sum =
        graph.add_initializer(sum_name(graph, gradient), Tensor(type.dtype, concrete(*type.shape)));
    graph.add_state(sum, (b.value(sum) + b.value(gradient)).id, StateKind::kAccumulator);
  }
  drop_unused(graph);
  return graph;
}

/// The update from the sums.
Graph make_apply(const Graph& step, const std::vector<ValueId>& gradients, PassContext& context) {
  Graph graph = step;
  const NodeId first = graph.first(graph.main());
  Builder b(graph, graph.before(first), context.infer);
  b.set_role(Role::kOptimizer);
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) {
    const NodeId producer = graph.value(output).producer;
    if (producer.valid() && graph.node(producer).role == Role::kOptimizer)
      outputs.push_back(output);
  }
  graph.set_outputs(graph.main(), outputs);
  for (uint32_t i = static_cast<uint32_t>(graph.states().size()); i-- > 0;) {
    const State state = graph.states()[i];
    if (state.kind == StateKind::kRandom) {
      graph.remove_state(i);
    } else if (state.kind == StateKind::kStatistic) {
      const std::string name = std::string(kPendingPrefix) + graph.value(state.current).name;
      const ValueId pending = graph.add_initializer(name, graph.value(state.current).tensor);
      const ValueId committed = b.op("Identity", {b.value(pending)}).id;
      graph.set_state_next(i, committed);
      graph.add_state(pending, committed, StateKind::kRandom);
    }
  }
  const double share = 1.0 / static_cast<double>(context.options.train.accumulation);
  Builder zeros(graph, graph.end(), context.infer);
  zeros.set_role(Role::kOptimizer);
  for (ValueId gradient : gradients) {
    const ValueType type = graph.value(gradient).type;
    const Tensor zero(type.dtype, concrete(*type.shape));
    const std::string name = graph.value(gradient).name;
    const ValueId sum = graph.add_initializer(sum_name(graph, gradient), zero);
    const Expr mean = b.value(sum) * share;
    graph.replace_uses_if(gradient, mean.id, [&](const Use& use) {
      return use.by_node() && graph.node(use.node()).role == Role::kOptimizer;
    });
    graph.rename(gradient, graph.unique_name(name + ".forward"));
    graph.rename(mean.id, graph.unique_name(name));
    // A constant of zeros would be as large as the gradient, in the file and in memory.
    const ValueId next = zeros.op("ConstantOfShape", {zeros.ints(zero.shape())}).id;
    graph.rename(next, graph.unique_name("zero/" + name));
    graph.add_state(sum, next, StateKind::kAccumulator);
  }
  drop_unused(graph);
  while (!graph.inputs().empty()) graph.remove_value(graph.inputs().back());
  return graph;
}

}  // namespace

bool split_accumulation(Model& model, PassContext& context) {
  const int64_t count = context.options.train.accumulation;
  if (count < 1) {
    throw Error(ErrorCode::kUsage, "gradient accumulation counts micro-batches")
        .expected("1 or more", std::to_string(count));
  }
  TrainingStep* step = find_step(model, kStepName);
  if (count > 1 && step != nullptr && context.options.train.optimizer.kind == "none") {
    throw Error(ErrorCode::kUsage, "gradient accumulation needs an optimizer")
        .expected("an optimizer that takes the sums", "--optimizer none")
        .hint("without one, sum the grad/ outputs of the step yourself");
  }
  if (count == 1 || step == nullptr || !find_state(step->graph, kAppliedStep)) return false;
  const std::vector<ValueId> gradients = gradients_of(step->graph);
  TrainingStep apply;
  apply.name = kApplyName;
  apply.graph = make_apply(step->graph, gradients, context);
  step->graph = make_accumulate(step->graph, gradients, context);
  step->name = kAccumulateName;
  model.training.insert(model.training.begin() + 1, std::move(apply));
  return true;
}

}  // namespace halfnote
