// force_training: brings the normalizations and dropouts of the training step into their training
// form.
//
//   Y, m1, v1 = BatchNormalization <training_mode = 1> (X, s, b, m, v)
//     ──▶   state m -> m1, v -> v1; a second one with the same m and v goes on with m1 and v1
//   Y = Dropout (X, ratio, true)
//     ──▶   Y = ai.halfnote.Dropout <ratio, node> (X, random_seed, attempted_step)
//   Y = RandomNormalLike (X)
//     ──▶   Y = ai.halfnote.RandomNormal <node> (X, random_seed, attempted_step)
//
// Nodes that the exporter wrote in inference form (training_mode 0, Dropout without its third
// input) are left alone and counted in one warning an op, or with --force-training brought into the
// training form too. Exact where the node was in training form: only the source of random numbers
// becomes our own. A random node with a seed of its own has a stream of that seed. The evaluation,
// which has no step, draws the same numbers each time, another node others. Leaves alone: Dropout
// with ratio 0, BatchNormalization whose statistics the graph computes, random nodes of
// model.graph.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "compiler/ir/hash.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/operator.h"
#include "passes/exporters/folded_norms.h"
#include "passes/passes.h"
#include "passes/train/step.h"
#include "passes/train/untrainable.h"

namespace halfnote {
namespace {

class TrainingForm {
 public:
  TrainingForm(Graph& graph, const std::string& source, PassContext& context)
      : graph_(graph), source_(source), context_(context) {}

  bool run() {
    bool changed = false;
    for (NodeId node : graph_.all_nodes()) changed |= draw(node);
    for (NodeId node : graph_.nodes()) {
      if (!graph_.node(node).domain.empty()) continue;
      const std::string& op = graph_.node(node).op;
      if (op == "BatchNormalization") changed |= batch_normalization(node);
      if (op == "Dropout") changed |= dropout(node);
    }
    warn("BatchNormalization", "statistics stay frozen", frozen_);
    warn("Dropout", "nothing is dropped", idle_);
    if (context_.options.train.force_training && !forced_) {
      const std::string folded = folded_norms_text(graph_);
      context_.warn(source_,
                    "--force-training does nothing: no BatchNormalization or Dropout is in "
                    "inference form" +
                        (folded.empty() ? "" : "; " + folded + ": " + kFoldedNormWayOut));
    }
    return changed;
  }

  /// Nodes without a training form.
  const UnsupportedOps& refused() const { return refused_; }

 private:
  bool batch_normalization(NodeId node) {
    const bool training = graph_.node(node).attributes.get_int("training_mode", 0) != 0;
    if (!training && computes_statistics(node)) return false;
    if (!training && !context_.options.train.force_training) {
      frozen_.push_back(graph_.label(node));
      return false;
    }
    bool changed = false;
    if (!training) {
      forced_ = true;
      graph_.node(node).attributes.set("training_mode", int64_t{1});
      changed = true;
    }
    changed |= complete_results(node);
    for (size_t i = 1; i <= 2; ++i) {
      const ValueId current = graph_.input(node, i + 2);
      if (!current.valid() || graph_.value(current).kind != ValueKind::kInitializer) continue;
      const ValueId next = graph_.output(node, i);
      if (const auto known = graph_.state_of(current)) {
        changed |= go_on(*known, node, i + 2, next);
      } else {
        graph_.add_state(current, next, StateKind::kStatistic);
        changed = true;
      }
    }
    return changed;
  }

  /// A statistic that an earlier node of the step has moved already: this one moves on what that
  /// left, as two calls of one module do.
  bool go_on(uint32_t state, NodeId node, size_t input, ValueId next) {
    const ValueId current = graph_.states()[state].current, so_far = graph_.states()[state].next;
    const NodeId earlier = graph_.value(so_far).producer;
    if (!earlier.valid() || earlier == node || !graph_.is_before(earlier, node)) return false;
    graph_.remove_state(state);
    graph_.set_input(node, input, so_far);
    graph_.add_state(current, next, StateKind::kStatistic);
    return true;
  }

  /// Mean or variance are computed in the graph (track_running_stats=False): they are those of the
  /// batch already, gradients flow through them, and there is nothing that could stay frozen.
  bool computes_statistics(NodeId node) const {
    return graph_.value(graph_.input(node, 3)).kind != ValueKind::kInitializer ||
           graph_.value(graph_.input(node, 4)).kind != ValueKind::kInitializer;
  }

  /// The training form has all three results, or none of its types can be inferred.
  bool complete_results(NodeId node) {
    bool added = false;
    for (size_t i = 1; i <= 2; ++i) {
      if (graph_.output(node, i).valid()) continue;
      const std::string& name = graph_.value(graph_.input(node, i + 2)).name;
      graph_.add_node_output(node, i, graph_.unique_name(name + ".next"));
      added = true;
    }
    if (added) context_.infer(graph_, node);
    return added;
  }

  bool dropout(NodeId node) {
    const Tensor* ratio = graph_.constant(graph_.input(node, 1));
    const Tensor* mode = graph_.constant(graph_.input(node, 2));
    if (graph_.input(node, 1).valid() && ratio == nullptr) {
      refused_.add(graph_, node, "its ratio is computed in the graph", "a constant ratio");
      return false;
    }
    const double p = ratio == nullptr ? 0.5 : ratio->at_as_double(0);
    const bool training = mode != nullptr && mode->at_as_int(0) != 0;
    if (p <= 0) return false;
    forced_ |= !training && context_.options.train.force_training;
    if (!training && !context_.options.train.force_training) {
      idle_.push_back(graph_.label(node));
      return false;
    }
    if (graph_.output(node, 1).valid() && graph_.has_uses(graph_.output(node, 1))) {
      refused_.add(graph_, node, "its mask is used, which a training step does not keep",
                   "Dropout whose mask nobody reads");
      return false;
    }
    Builder b(graph_, graph_.before(node), context_.infer);
    b.set_origin(graph_.node(node).name);
    const Expr y = b.op("Dropout",
                        {b.value(graph_.input(node, 0)),
                         state(b, kSeed, context_.options.train.seed), state(b, kAttemptedStep, 0)},
                        {{"ratio", static_cast<float>(p)}, {"node", next_id_++}}, kHalfnoteDomain);
    graph_.replace_uses(graph_.output(node), y.id);
    graph_.remove(node);
    return true;
  }

  /// A random op reads a stream of the step. In a body it would draw the same for every trip.
  bool draw(NodeId node) {
    const OperatorRow* row = find_operator(graph_.node(node));
    if (row == nullptr || row->draw == nullptr) return false;
    if (graph_.node(node).region != graph_.main()) {
      refused_.add(graph_, node, "it stands in a body, which has no stream of random numbers",
                   "the same node outside of the body, for all its trips");
      return false;
    }
    Builder b(graph_, graph_.before(node), context_.infer);
    b.set_origin(graph_.label(node));
    const Attributes& attributes = graph_.node(node).attributes;
    const auto own = std::bit_cast<uint32_t>(attributes.get_float("seed", 0));
    const Expr seed = attributes.has("seed") ? b.constant(Tensor::scalar<int64_t>(own))
                                             : state(b, kSeed, context_.options.train.seed);
    LowerContext rule{b, node, {}, {}};
    for (ValueId input : graph_.inputs(node)) rule.inputs.push_back(b.value(input));
    const Expr drawn = row->draw(rule, {seed, state(b, kAttemptedStep, 0), next_id_++});
    take_place(graph_, graph_.output(node), drawn.id);
    graph_.remove(node);
    return true;
  }

  /// A random-number state of the step, shared by all dropouts and random nodes.
  Expr state(Builder& b, std::string_view name, int64_t first) {
    ValueId value = graph_.find(name);
    if (!value.valid()) {
      value = graph_.add_initializer(std::string(name), Tensor::scalar<int64_t>(first));
      graph_.add_state(value, value, StateKind::kRandom);
    }
    return b.value(value);
  }

  /// One warning for all nodes of an op that are in inference form.
  void warn(const std::string& op, const std::string& effect,
            const std::vector<std::string>& names) {
    if (names.empty()) return;
    std::string first;
    for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
      first += (i == 0 ? "" : ", ") + names[i];
    }
    if (names.size() > kMostNames) first += ", …";
    const bool one = names.size() == 1;
    context_.warn(source_, (one ? op : std::to_string(names.size()) + " " + op + " nodes") + " (" +
                               first + (one ? ") is" : ") are") + " in inference form: " + effect +
                               "; --force-training changes that, or an export with "
                               "training=TrainingMode.TRAINING (PyTorch, dynamo=False)");
  }

  static constexpr size_t kMostNames = 4;

  Graph& graph_;
  const std::string& source_;
  PassContext& context_;
  std::vector<std::string> frozen_, idle_;
  UnsupportedOps refused_;
  bool forced_ = false;  // --force-training had something to do
  int64_t next_id_ = 0;
};

/// Random nodes of the evaluation that have no seed: else all of them would draw the same.
bool give_seeds(Graph& graph, const PassContext& context) {
  bool changed = false;
  for (NodeId node : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(node));
    if (row == nullptr || row->draw == nullptr || graph.node(node).attributes.has("seed")) continue;
    const uint64_t seed = hash_mix(hash_text(graph.value(graph.output(node)).name),
                                   static_cast<uint64_t>(context.options.train.seed));
    graph.node(node).attributes.set("seed", static_cast<float>(seed >> 40));  // 24 bits: exact
    changed = true;
  }
  return changed;
}

}  // namespace

bool force_training(Model& model, PassContext& context) {
  TrainingStep* step = find_step(model, kStepName);
  if (step == nullptr) return false;
  TrainingForm form(step->graph, model.source, context);
  bool changed = form.run();
  if (TrainingStep* evaluate = find_step(model, kEvaluateName)) {
    changed |= give_seeds(evaluate->graph, context);
  }
  const UnsupportedOps& refused = form.refused();
  if (refused.empty()) return changed;
  const ValueId loss = loss_of(step->graph);
  refuse_all(refused.ops_text() + " cannot be trained in this form", "", refused,
             find_untrainable(step->graph, Progress::kCanonical, {&loss, 1}, refused, context));
}

}  // namespace halfnote
