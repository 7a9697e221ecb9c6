// differentiate: reverse-mode autodiff. Appends the backward pass to the training step.
//
//   loss = Op(w, x)            loss = Op(w, x)
//                      ──▶     dw, dx = gradient rule of Op (seed `loss_scale`)
//                              outputs: loss, …, grad/w
//
// Exact: only new nodes are added (a forward node may be asked for an optional output, or give way
// to a form that keeps its statistics). The seed of the loss is the state `loss_scale`, 1 until the
// loss-scaling pass decides. Each gradient of a trainable initializer becomes the output
// `grad/NAME`. Leaves alone: nodes on no path from a trainable initializer to the loss, the
// evaluation step, the inference graph.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"
#include "passes/train/gradient_path.h"
#include "passes/train/step.h"
#include "passes/unsupported.h"

namespace halfnote {
namespace {

constexpr const char* kFreeze =
    "freeze the weights before these nodes (--freeze REGEX), or rewrite the nodes";

[[noreturn]] void refuse(const UnsupportedOps& missing) {
  throw Error(ErrorCode::kUnsupported,
              "no gradient for " + std::to_string(missing.op_count()) +
                  " op(s) between the weights and the loss: " + missing.list_with_forms())
      .hint(kFreeze);
}

class Reverse {
 public:
  Reverse(Graph& graph, PassContext& context)
      : graph_(graph), context_(context), builder_(graph, graph.end(), context.infer) {
    builder_.set_role(Role::kBackward);
  }

  void run(ValueId loss) {
    const std::vector<bool> reached = reached_from_weights(graph_);
    const std::vector<NodeId> nodes = nodes_between(graph_, reached, std::span(&loss, 1));
    add_without_gradient(graph_, nodes, kOpsetVersion, problems_);
    const ValueId scale =
        graph_.add_initializer(std::string(kLossScale), Tensor::scalar<float>(1.0f));
    graph_.add_state(scale, scale, StateKind::kScaler);
    Expr seed = builder_.cast(builder_.value(scale), graph_.value(loss).type.dtype);
    if (graph_.value(loss).type.rank() > 0) {
      seed = builder_.reshape(seed, builder_.ints(std::vector<int64_t>(
                                        static_cast<size_t>(graph_.value(loss).type.rank()), 1)));
    }
    gradients_[loss] = seed;
    for (NodeId node : nodes) visit(node, reached);
    if (!problems_.empty()) refuse(problems_);
    publish();
  }

 private:
  void visit(NodeId node, const std::vector<bool>& reached) {
    GradientContext rule{builder_, node, {}, {}, {}, {}, context_.infer};
    bool any = false;
    for (ValueId output : graph_.outputs(node)) {
      rule.outputs.push_back(builder_.value(output));
      const auto found = output.valid() ? gradients_.find(output) : gradients_.end();
      rule.grads.push_back(found == gradients_.end() ? builder_.none() : found->second);
      any |= rule.grads.back().valid();
    }
    if (!any) return;
    for (ValueId input : graph_.inputs(node)) {
      rule.inputs.push_back(builder_.value(input));
      rule.needed.push_back(input.valid() && input.index < reached.size() && reached[input.index]);
    }
    const Node& data = graph_.node(node);
    builder_.set_origin(graph_.label(node));
    const Place place{{}, data.name, data.op};
    const std::vector<ValueId> inputs(graph_.inputs(node).begin(), graph_.inputs(node).end());
    const std::vector<bool> needed = rule.needed;
    const std::vector<Expr> results = gradient_of(node, rule, place);
    for (size_t i = 0; i < results.size() && i < inputs.size(); ++i) {
      if (results[i].valid() && needed[i]) contribute(inputs[i], results[i], place);
    }
  }

  /// What the rule gives. A rule that refuses is noted; the operands themselves stand in for its
  /// gradients, so that the nodes before it are asked too.
  std::vector<Expr> gradient_of(NodeId node, GradientContext& rule, const Place& place) {
    const OperatorRow* row = find_operator(graph_.node(node));
    if (row == nullptr || row->gradient == nullptr) return rule.inputs;  // noted already
    const std::vector<Expr> operands = rule.inputs;
    try {
      return row->gradient(rule);
    } catch (Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw error.within(place);
      problems_.add(graph_, node, kOpsetVersion, error.problem());
      return operands;
    }
  }

  void contribute(ValueId value, Expr gradient, const Place& place) {
    const ValueType& to = graph_.value(value).type;
    const ValueType& from = gradient.type();
    if (from.dtype != to.dtype || from.rank() != to.rank()) {
      throw Error(ErrorCode::kInternal, "a gradient rule gave another type than its operand's")
          .at(place)
          .expected(to_string(to), to_string(from));
    }
    auto [found, is_new] = gradients_.try_emplace(value, gradient);
    if (!is_new) found->second = found->second + gradient;
  }

  /// Names the gradients of the weights and makes them outputs, in the order of the initializers.
  void publish() {
    for (ValueId weight : graph_.initializers()) {
      if (!graph_.value(weight).trainable) continue;
      const auto found = gradients_.find(weight);
      if (found == gradients_.end()) {
        context_.warn(graph_.value(weight).name,
                      "the loss does not depend on this parameter: it is not trained");
        graph_.value(weight).trainable = false;
        continue;
      }
      ValueId gradient = found->second.id;
      // A gradient that is another value's too (an Add passes it on) gets a name of its own.
      if (!published_.insert(gradient).second ||
          graph_.value(gradient).kind != ValueKind::kResult) {
        gradient = builder_.op("Identity", {builder_.value(gradient)}).id;
      }
      graph_.rename(gradient,
                    graph_.unique_name(std::string(kGradientPrefix) + graph_.value(weight).name));
      graph_.add_output(graph_.main(), gradient);
    }
  }

  Graph& graph_;
  PassContext& context_;
  Builder builder_;
  std::map<ValueId, Expr> gradients_;
  std::set<ValueId> published_;
  UnsupportedOps problems_;
};

}  // namespace

bool differentiate(Model& model, PassContext& context) {
  TrainingStep* step = find_step(model, kStepName);
  if (step == nullptr) return false;
  Graph& graph = step->graph;
  if (find_state(graph, kLossScale)) return false;  // done before
  Reverse(graph, context).run(loss_of(graph));
  return true;
}

}  // namespace halfnote
