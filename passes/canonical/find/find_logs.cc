// find_logs: the logarithm of a probability becomes one of the score, which does not overflow.
//
//   Log(Softmax(x))       ──▶  LogSoftmax(x)
//   Log(Sigmoid(x))       ──▶  Neg(Softplus(Neg(x)))
//   Log(Sub(1, Sigmoid(x)))    ──▶  Neg(Softplus(x))
//
// A probability of 0 or 1 in f32 has a logarithm of −∞, and its gradient is NaN: PyTorch's older
// exporter writes binary_cross_entropy_with_logits so, and a step ends in NaN as soon as a score is
// beyond ±17. Rounding: a few units of f32; where f32 has lost the probability, the logarithm that
// exact arithmetic has. The probability itself stays where others read it. Leaves alone: what is
// clipped or has an ε added on the way, and 1 of more elements than one.
#include <string>
#include <vector>

#include "compiler/ir/replace.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

class LogFinder {
 public:
  LogFinder(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId node : graph_.all_nodes()) {
      if (is_op(node, "Log")) changed |= rewrite(node);
    }
    return changed;
  }

 private:
  bool is_op(NodeId node, std::string_view op) const {
    return node.valid() && graph_.node(node).domain.empty() && graph_.node(node).op == op;
  }

  NodeId made_by(ValueId value, std::string_view op) const {
    const NodeId node = producer(graph_, value);
    return is_op(node, op) ? node : NodeId{};
  }

  bool is_one(ValueId value) const {
    const Tensor* tensor = graph_.constant(value);
    return tensor != nullptr && tensor->size() == 1 && tensor->at_as_double(0) == 1;
  }

  /// The Sigmoid whose result is taken from 1, where that has the shape of the result.
  NodeId complement(NodeId sub) const {
    if (!sub.valid() || !is_one(graph_.input(sub, 0))) return {};
    const ValueType& one = graph_.value(graph_.input(sub, 0)).type;
    const ValueType& taken = graph_.value(graph_.input(sub, 1)).type;
    const bool keeps = one.shape && (one.shape->empty() ||
                                     (taken.shape && one.shape->size() <= taken.shape->size()));
    return keeps ? made_by(graph_.input(sub, 1), "Sigmoid") : NodeId{};
  }

  bool rewrite(NodeId log) {
    const ValueId probability = graph_.input(log, 0);
    const NodeId softmax = made_by(probability, "Softmax");
    const NodeId sigmoid = made_by(probability, "Sigmoid");
    const NodeId sub = made_by(probability, "Sub"), other = complement(sub);
    const NodeId source = softmax.valid() ? softmax : sigmoid.valid() ? sigmoid : other;
    if (!source.valid()) return false;
    Builder b(graph_, graph_.before(log), infer_);
    b.set_role(graph_.node(log).role);
    b.set_origin(graph_.node(log).origin);
    const Expr x = b.value(graph_.input(source, 0));
    Expr y;
    if (softmax.valid()) {
      y = b.op("LogSoftmax", {x}, graph_.node(softmax).attributes);
    } else {
      y = b.op("Neg", {b.op("Softplus", {sigmoid.valid() ? b.op("Neg", {x}) : x})});
    }
    replace(log, b.last(), y.id);
    for (const NodeId node : {sub, source}) {
      if (node.valid() && !graph_.has_uses(graph_.output(node))) graph_.remove(node);
    }
    return true;
  }

  void replace(NodeId log, NodeId by, ValueId result) {
    graph_.node(by).name = graph_.label(log);
    graph_.node(by).metadata = graph_.node(log).metadata;
    const ValueId old = graph_.output(log);
    graph_.value(result).type = graph_.value(old).type;
    take_place(graph_, old, result);
    graph_.remove(log);
  }

  Graph& graph_;
  const InferNode& infer_;
};

}  // namespace

bool find_logs(Graph& graph, PassContext& context) { return LogFinder(graph, context.infer).run(); }

}  // namespace halfnote
