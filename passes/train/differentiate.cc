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
#include <set>

#include "base/error.h"
#include "passes/passes.h"
#include "passes/train/backward.h"
#include "passes/train/gradient_path.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

constexpr const char* kFreeze =
    "freeze the weights before these nodes (--freeze REGEX), or rewrite the nodes";

[[noreturn]] void refuse(const UnsupportedOps& missing) {
  throw UnsupportedError(
      "no gradient for " + missing.ops_text() + " between the weights and the loss", missing,
      kFreeze);
}

/// A step is planned before the first one runs, in fixed sizes.
void refuse_sizes_of_values(const Graph& graph) {
  UnsupportedOps found;
  add_sized_by_values(graph, loss_of(graph), found);
  if (found.empty()) return;
  throw UnsupportedError(
      "sizes that depend on data, before the loss, in " + found.ops_text(), found,
      "keep all elements, and give those left out no weight: labels that the loss ignores "
      "(ignore_index) instead of logits[mask], Where or Mul with the mask, "
      "instead of a selection by it");
}

class Reverse {
 public:
  Reverse(Graph& graph, PassContext& context)
      : graph_(graph),
        context_(context),
        backward_(graph, graph.main(), context.infer, problems_) {}

  void run(ValueId loss) {
    const std::vector<NodeId> forward = graph_.nodes();
    const ValueId scale =
        graph_.add_initializer(std::string(kLossScale), Tensor::scalar<float>(1.0f));
    graph_.add_state(scale, scale, StateKind::kScaler);
    Builder& b = backward_.builder();
    Expr seed = b.cast(b.value(scale), graph_.value(loss).type.dtype);
    if (graph_.value(loss).type.rank() > 0) {
      seed = b.reshape(seed, b.ints(std::vector<int64_t>(
                                 static_cast<size_t>(graph_.value(loss).type.rank()), 1)));
    }
    backward_.seed(loss, seed);
    backward_.run(forward, trainable_initializers(graph_));
    if (!problems_.empty()) refuse(problems_);
    publish();
  }

 private:
  /// Names the gradients of the weights and makes them outputs, in the order of the initializers.
  void publish() {
    for (ValueId weight : graph_.initializers()) {
      if (!graph_.value(weight).trainable) continue;
      ValueId gradient = backward_.gradient(weight);
      if (!gradient.valid()) {
        const std::string why = why_untrained(weight);
        context_.warn(graph_.value(weight).name, why + ": it is not trained");
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
    if (!published_.empty() || stopped_.empty()) return;
    throw Error(ErrorCode::kModel, "no parameter has a gradient: " + stopped_)
        .hint("take that node out of the way from the weights to the loss");
  }

  /// Names the node that hands no gradient on, where there is one on a way to the loss.
  std::string why_untrained(ValueId weight) {
    std::vector<ValueId> open = {weight};
    std::set<ValueId> seen = {weight};
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      for (NodeId user : graph_.users(value)) {
        if (graph_.node(user).role != Role::kForward) continue;
        for (ValueId output : graph_.outputs(user)) {
          if (!output.valid()) continue;
          if (backward_.gradient(output).valid()) return stopped_ = stopped_by(user);
          if (seen.insert(output).second) open.push_back(output);
        }
      }
    }
    return "the loss does not depend on this parameter";
  }

  std::string stopped_by(NodeId id) const {
    const Node& node = graph_.node(id);
    const OperatorRow* row = find_operator(node);
    std::string text = "no gradient passes " + graph_.label(id) + " (" + node.op + ")";
    if (row != nullptr && !row->note.empty()) text += ", " + std::string(row->note);
    return text;
  }

  Graph& graph_;
  PassContext& context_;
  UnsupportedOps problems_;
  Backward backward_;
  std::set<ValueId> published_;
  std::string stopped_;  // why a weight on a way to the loss has no gradient
};

}  // namespace

bool differentiate(Model& model, PassContext& context) {
  TrainingStep* step = find_step(model, kStepName);
  if (step == nullptr) return false;
  Graph& graph = step->graph;
  if (find_state(graph, kLossScale)) return false;  // done before
  refuse_sizes_of_values(graph);
  write_out_derivatives(graph, context.infer, trainable_initializers(graph), loss_of(graph));
  Reverse(graph, context).run(loss_of(graph));
  return true;
}

}  // namespace halfnote
