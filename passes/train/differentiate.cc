// differentiate: reverse-mode autodiff. Appends the backward pass to the training step.
//
//   loss = Op(w, x)            loss = Op(w, x)
//                      ──▶     dw, dx = gradient rule of Op (seed `loss_scale`)
//                              outputs: loss, …, grad/w
//
// Exact: only new nodes are added (a forward node may be asked for an optional output, or give way
// to a form that keeps its statistics; a gradient op in the forward model, as of a gradient
// penalty, gives way to its body). The seed of the loss is the state `loss_scale`, 1 until the
// loss-scaling pass decides. Each gradient of a trainable initializer becomes the output
// `grad/NAME`. The gradient of an If or Scan has bodies of its own, in which the forward body is
// computed again. Leaves alone: nodes on no path from a trainable initializer to the loss, the
// evaluation step, the inference graph.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "passes/passes.h"
#include "passes/train/backward.h"
#include "passes/train/gradient_path.h"
#include "passes/train/sizes_of_data.h"
#include "passes/train/step.h"
#include "passes/train/stopped.h"
#include "passes/train/untrainable.h"

namespace halfnote {
namespace {

/// Does a gradient need to flow through an op that has none?
bool lacks_gradients(const Graph& graph, ValueId loss) {
  const std::vector<NodeId> nodes = graph.nodes();
  const std::vector<bool> reached = reached_from(graph, nodes, trainable_initializers(graph));
  const std::vector<NodeId> between = nodes_between(graph, nodes, reached, {&loss, 1});
  return std::ranges::any_of(between, [&](NodeId node) {
    const OperatorRow* row = find_operator(graph.node(node));
    return row == nullptr || (row->gradient == nullptr && row->body == nullptr);
  });
}

/// A step is planned before the first one runs, in fixed sizes. Where that cannot be, or an op has
/// no gradient, all else that is wrong is told too.
void refuse_untrainable(const Graph& graph, ValueId loss, PassContext& context) {
  UnsupportedOps sizes;
  add_sizes_of_data(
      graph, {&loss, 1}, [](NodeId) { return true; }, sizes);
  if (sizes.empty() && !lacks_gradients(graph, loss)) return;
  refuse_all("", "", {}, find_untrainable(graph, Progress::kCanonical, {&loss, 1}, {}, context));
}

class Reverse {
 public:
  Reverse(Graph& graph, ValueId loss, PassContext& context)
      : graph_(graph),
        loss_(loss),
        context_(context),
        backward_(graph, graph.main(), context.infer, problems_) {}

  void run() {
    const std::vector<NodeId> forward = graph_.nodes();
    const ValueId scale =
        graph_.add_initializer(std::string(kLossScale), Tensor::scalar<float>(1.0f));
    graph_.add_state(scale, scale, StateKind::kScaler);
    Builder& b = backward_.builder();
    Expr seed = b.cast(b.value(scale), graph_.value(loss_).type.dtype);
    if (graph_.value(loss_).type.rank() > 0) {
      seed = b.reshape(seed, b.ints(std::vector<int64_t>(
                                 static_cast<size_t>(graph_.value(loss_).type.rank()), 1)));
    }
    backward_.seed(loss_, seed);
    backward_.run(forward, trainable_initializers(graph_));
    if (!problems_.empty()) refuse();
    publish();
  }

 private:
  /// Says all that is wrong, in bodies by the names that the model has for their nodes.
  [[noreturn]] void refuse() {
    const Untrainable all =
        find_untrainable(graph_, Progress::kCanonical, {&loss_, 1}, {}, context_);
    refuse_all("", "", {}, all.gradients.empty() ? Untrainable{problems_, {}, {}} : all);
  }

  /// Names the gradients of the weights and makes them outputs, in the order of the initializers.
  void publish() {
    refuse_closed_ways();
    StoppedGradients stopped(graph_, backward_, loss_);
    for (ValueId weight : graph_.initializers()) {
      if (!graph_.value(weight).trainable) continue;
      ValueId gradient = backward_.gradient(weight);
      if (!gradient.valid()) {
        context_.warn(graph_.value(weight).name,
                      stopped.why_untrained(weight) + ": it is not trained");
        graph_.value(weight).trainable = false;
        continue;
      }
      // A gradient that is another value's too (an Add passes it on) gets a name of its own.
      if (!published_.insert(gradient).second ||
          graph_.value(gradient).kind != ValueKind::kResult) {
        Builder& b = backward_.builder();
        gradient = b.op("Identity", {b.value(gradient)}).id;
      }
      graph_.rename(gradient,
                    graph_.unique_name(std::string(kGradientPrefix) + graph_.value(weight).name));
      graph_.add_output(graph_.main(), gradient);
    }
  }

  /// Where no weight has a gradient though the loss depends on some.
  void refuse_closed_ways() {
    const std::vector<ValueId> weights = trainable_initializers(graph_);
    const auto trained = [&](ValueId weight) { return backward_.gradient(weight).valid(); };
    if (std::ranges::any_of(weights, trained)) return;
    Untrainable all = find_untrainable(graph_, Progress::kCanonical, {&loss_, 1}, {}, context_);
    StoppedGradients stopped(graph_, backward_, loss_);
    for (ValueId weight : weights) stopped.why_untrained(weight);
    // A structure passes where one of its ways does: then only the first stops are known.
    if (all.stops.empty()) all.stops.add_new(stopped.all(), {&all.gradients, &all.sizes});
    if (!all.stops.empty()) refuse_all("", "", {}, all);
  }

  Graph& graph_;
  const ValueId loss_;
  PassContext& context_;
  UnsupportedOps problems_;
  Backward backward_;
  std::set<ValueId> published_;
};

}  // namespace

/// A body hands out, for its gradient, what all bodies within it hand out: a small file of bodies
/// within bodies would become a large step.
constexpr int64_t kMostNestedNodes = 40'000;

/// The nodes within `region`, each as often as there are bodies around it that are not its own.
int64_t nested_nodes(const Graph& graph, RegionId region, int64_t levels) {
  int64_t count = 0;
  for (NodeId node : graph.nodes(region)) {
    count += levels > 1 ? levels - 1 : 0;
    for (RegionId inner : graph.subgraphs(node)) count += nested_nodes(graph, inner, levels + 1);
  }
  return count;
}

void refuse_deep_control_flow(const Graph& graph) {
  if (graph.region_count() == 1) return;
  const int64_t count = nested_nodes(graph, graph.main(), 0);
  if (count <= kMostNestedNodes) return;
  throw Error(ErrorCode::kUnsupported, "too much control flow within control flow for a gradient")
      .expected(
          fmt::format("at most {} nodes in bodies within bodies, times the bodies around each",
                      kMostNestedNodes),
          std::to_string(count))
      .hint("export it with fewer conditions on data, or --inference");
}

bool differentiate(Model& model, PassContext& context) {
  TrainingStep* step = find_step(model, kStepName);
  if (step == nullptr) return false;
  Graph& graph = step->graph;
  if (find_state(graph, kLossScale)) return false;  // done before
  const ValueId loss = loss_of(graph);
  refuse_untrainable(graph, loss, context);
  refuse_deep_control_flow(graph);
  write_out_derivatives(graph, context.infer, trainable_initializers(graph), loss);
  Reverse(graph, loss, context).run();
  return true;
}

}  // namespace halfnote
