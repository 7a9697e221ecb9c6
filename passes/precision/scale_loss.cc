// scale_loss: loss scaling and the transactional update.
//
//   dlogits = SoftmaxCrossEntropyLossGrad(loss_scale, …)
//   dw      = … (backward, carries S)
//   w'      = AdamW(w, dw, …)
//       ──▶
//   loss_scale: state, 65536 at first (f16), moved by UpdateLossScale from `finite`
//   finite  = AllFinite(dw, …)
//   dw1     = Mul(dw, 1/loss_scale)
//   w'      = AdamW(w, dw1, …, finite)
//
// By the policy's dtype: f32 takes the seed 1 and leaves the rest as it is; bf16 keeps the seed 1
// and adds the finite check; f16 scales too. A step that is not finite commits nothing: weights,
// moments, running statistics and `applied_step` keep their bits (an optimizer through its `commit`
// input, other states through Where), while `attempted_step`, the random seeds and the scaler's own
// state go on. With gradient accumulation S is constant over the micro-batches: the sums carry it,
// and only `apply` unscales, checks and commits. Rounding: the product with 1/S is exact where S is
// a power of two.
//
// Afterwards every value carries the right power of S (scale_units.h); anything else is a compile
// error.
#include <cmath>
#include <vector>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"
#include "passes/precision/scale_units.h"
#include "passes/settings.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

class Scaling {
 public:
  Scaling(Graph& graph, PassContext& context)
      : graph_(graph),
        context_(context),
        policy_(context.options.policy),
        b_(graph, graph.end(), context.infer) {
    b_.set_role(Role::kScaling);
  }

  bool has_gradients() const { return find_state(graph_, kLossScale).has_value(); }

  /// An earlier run has been here.
  bool is_done() const {
    return graph_.find(kFinite).valid() || graph_.value(graph_.find(kLossScale)).scale_power != 0;
  }

  /// The seed is 1 for ever.
  void drop_scale() {
    const uint32_t state = *find_state(graph_, kLossScale);
    const ValueId scale = graph_.states()[state].current;
    const Expr one = b_.constant(Tensor::scalar<float>(1.0f), "one");
    graph_.replace_uses_if(scale, one.id,
                           [](const Use& use) { return use.kind != UseKind::kStateNext; });
    graph_.remove_state(state);
    graph_.remove_value(scale);
  }

  /// The first value of the scale, and its unit.
  void set_scale() {
    const ValueId scale = graph_.find(kLossScale);
    graph_.value(scale).tensor = Tensor::scalar<float>(policy_.scaler.init);
    graph_.value(scale).scale_power = 1;
  }

  /// What the optimizer (or an output of the step) takes from the backward pass, each once, in the
  /// order of the graph.
  std::vector<ValueId> boundary() const {
    std::vector<ValueId> found;
    for (NodeId node : graph_.nodes()) {
      if (graph_.node(node).role != Role::kBackward) continue;
      for (ValueId output : graph_.outputs(node)) {
        if (output.valid() && is_float(graph_.value(output).type.dtype) && crosses(output))
          found.push_back(output);
      }
    }
    for (const State& state : graph_.states()) {
      if (state.kind == StateKind::kAccumulator) found.push_back(state.current);
    }
    return found;
  }

  /// finite, the unscaled gradients in place of the scaled ones, and the commits.
  void guard(const std::vector<ValueId>& gradients, bool scaled) {
    if (gradients.empty()) return;
    const NodeId reader = first_reader(gradients);
    b_.set_insert_point(reader.valid() ? graph_.before(reader) : graph_.end());
    std::vector<Expr> all;
    for (ValueId gradient : gradients) all.push_back(b_.value(gradient));
    const Expr finite = b_.ops("AllFinite", all, 1, {}, kHalfnoteDomain)[0];
    graph_.rename(finite.id, graph_.unique_name(kFinite));
    const NodeId check = b_.last();
    if (scaled) unscale(gradients, check);
    commit(finite);
    graph_.add_output(graph_.main(), finite.id);
    if (scaled && policy_.scaler.dynamic) update_scale(finite);
    if (scaled) graph_.add_output(graph_.main(), graph_.find(kLossScale));
  }

 private:
  bool crosses(ValueId value) const {
    for (const Use& use : graph_.uses(value)) {
      if (is_boundary_use(use)) return true;
    }
    return false;
  }

  bool is_boundary_use(const Use& use) const {
    return use.by_node() ? graph_.node(use.node()).role == Role::kOptimizer
                         : use.kind == UseKind::kRegionOutput;
  }

  /// The first node that reads one of the gradients as the optimizer does, or the outcome of the
  /// check (an update by a constant gradient); invalid if only outputs do.
  NodeId first_reader(const std::vector<ValueId>& gradients) const {
    NodeId first;
    for (ValueId gradient : gradients) {
      for (const Use& use : graph_.uses(gradient)) {
        if (!use.by_node() || graph_.node(use.node()).role != Role::kOptimizer) continue;
        if (!first.valid() || graph_.is_before(use.node(), first)) first = use.node();
      }
    }
    for (const State& state : graph_.states()) {
      const NodeId update = graph_.value(state.next).producer;
      if (!first.valid() || !update.valid() || !graph_.is_before(update, first)) continue;
      const OperatorRow* row = find_operator(graph_.node(update));
      if (row != nullptr && row->commit_input >= 0) first = update;
    }
    return first;
  }

  void unscale(const std::vector<ValueId>& gradients, NodeId check) {
    const Expr inverse = b_.op("Reciprocal", {b_.value(graph_.find(kLossScale))});
    for (ValueId gradient : gradients) {
      const std::string name = graph_.value(gradient).name;
      const Expr g = b_.value(gradient);
      const DType wide = g.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
      const Expr plain = b_.cast(g, wide) * b_.cast(inverse, wide);
      // An accumulated sum keeps its name: it is the same state in both steps.
      if (graph_.value(gradient).kind == ValueKind::kResult) {
        graph_.rename(gradient, graph_.unique_name(name + ".scaled"));
      }
      graph_.rename(plain.id, graph_.unique_name(name));
      graph_.replace_uses_if(gradient, plain.id, [&](const Use& use) {
        return is_boundary_use(use) && use.node() != check;
      });
    }
  }

  void commit(Expr finite) {
    b_.set_insert_point(graph_.end());
    for (uint32_t i = 0; i < graph_.states().size(); ++i) {
      const State state = graph_.states()[i];
      const bool transactional =
          state.kind == StateKind::kWeight || state.kind == StateKind::kMoment ||
          state.kind == StateKind::kStatistic || state.kind == StateKind::kCounter;
      if (!transactional || state.next == state.current) continue;
      const NodeId producer = graph_.value(state.next).producer;
      const OperatorRow* row = producer.valid() ? find_operator(graph_.node(producer)) : nullptr;
      if (row != nullptr && row->commit_input >= 0) {
        graph_.set_input(producer, static_cast<size_t>(row->commit_input), finite.id);
        continue;
      }
      const Expr kept = b_.op("Where", {finite, b_.value(state.next), b_.value(state.current)});
      // Every state that takes this value: a pending statistic falls back with the committed one.
      graph_.replace_uses_if(state.next, kept.id,
                             [](const Use& use) { return use.kind == UseKind::kStateNext; });
    }
  }

  void update_scale(Expr finite) {
    const LossScaler& s = policy_.scaler;
    const ValueId scale = graph_.find(kLossScale);
    const auto int_state = [&](std::string_view name, int32_t first) {
      return b_.value(graph_.add_initializer(std::string(name), Tensor::scalar<int32_t>(first)));
    };
    const std::vector<Expr> states = {
        b_.value(scale),
        int_state("loss_scale.growth", 0),
        int_state("loss_scale.hysteresis", static_cast<int32_t>(s.hysteresis)),
        b_.value(graph_.add_initializer("loss_scale.pending", Tensor::scalar<float>(s.init))),
        int_state("loss_scale.clean", 0),
        b_.value(graph_.add_initializer("loss_scale.skips", Tensor::scalar<int64_t>(0))),
        int_state("loss_scale.skips_in_row", 0),
        int_state(kFloorHits, 0)};
    graph_.value(states[3].id).scale_power = 1;
    std::vector<Expr> operands = states;
    operands.push_back(finite);
    const auto next = b_.ops("UpdateLossScale", operands, static_cast<int>(states.size()),
                             {{"up", s.up},
                              {"down", s.down},
                              {"interval", s.interval},
                              {"hysteresis", s.hysteresis},
                              {"refill", s.refill},
                              {"first_window_extra", s.first_window_extra},
                              {"publish_delay", s.publish_delay},
                              {"warmup_interval", s.warmup_interval},
                              {"min", s.min},
                              {"max", s.max}},
                             kHalfnoteDomain);
    graph_.set_state_next(*graph_.state_of(scale), next[0].id);
    for (size_t i = 1; i < states.size(); ++i) {
      graph_.add_state(states[i].id, next[i].id, StateKind::kScaler);
    }
  }

  Graph& graph_;
  PassContext& context_;
  const Policy& policy_;
  Builder b_;
};

/// Nodes made here say why they are f32.
void give_reasons(Graph& graph) {
  for (NodeId node : graph.nodes()) {
    SharedText& reason = graph.node(node).precision.reason;
    if (reason.empty() && graph.node(node).role == Role::kScaling) {
      reason = "the scaling works in f32";
    }
  }
}

/// The accumulated sums carry S into and out of every step that holds them.
void mark_accumulators(Graph& graph) {
  for (const State& state : graph.states()) {
    if (state.kind == StateKind::kAccumulator) graph.value(state.current).scale_power = 1;
  }
}

}  // namespace

bool scale_loss(Model& model, PassContext& context) {
  const Policy& policy = context.options.policy;
  with_names(context.options, [&] { check_scaler(policy.scaler); });
  const bool scaled = policy.dtype == DType::kF16;
  const bool guarded = policy.dtype != DType::kF32;
  bool changed = false;
  for (TrainingStep& step : model.training) {
    Scaling scaling(step.graph, context);
    if (!scaling.has_gradients() || scaling.is_done()) continue;
    if (scaled) {
      scaling.set_scale();
      mark_accumulators(step.graph);
    }
    if (guarded && step.name != kAccumulateName) scaling.guard(scaling.boundary(), scaled);
    if (!scaled) scaling.drop_scale();
    give_reasons(step.graph);
    check_scale_units(step.graph);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
