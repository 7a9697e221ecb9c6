// find_logs: the logarithm of a probability becomes one of the score, which does not overflow.
//
//   Log(Softmax(x))       ──▶  LogSoftmax(x)
//   Log(Sigmoid(x))       ──▶  Neg(Softplus(Neg(x)))
//   Log(Sub(1, Sigmoid(x))), Log(Add(Neg(Sigmoid(x)), 1))     ──▶  Neg(Softplus(x))
//
// A probability of 0 or 1 in f32 has a logarithm of −∞, and its gradient is NaN: PyTorch's older
// exporter writes binary_cross_entropy_with_logits so, the newer one binary_cross_entropy (log1p),
// and a step ends in NaN as soon as a score is beyond ±17. Rounding: a few units of f32; where f32
// has lost the probability, the logarithm that exact arithmetic has. The probability itself stays
// where others read it. Leaves alone: what is clipped or has an ε added on the way, and 1 of more
// elements than one.
#include <string>
#include <vector>

#include "compiler/ir/query.h"
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
      if (is_op(graph_, node, "Log")) changed |= rewrite(node);
    }
    return changed;
  }

 private:
  NodeId made_by(ValueId value, std::string_view op) const {
    const NodeId node = producer(graph_, value);
    return is_op(graph_, node, op) ? node : NodeId{};
  }

  bool is_one(ValueId value) const {
    const Tensor* tensor = graph_.constant(value);
    return tensor != nullptr && tensor->size() == 1 && tensor->at_as_double(0) == 1;
  }

  /// A Sigmoid whose result is taken from 1, and the nodes that do so, the last one first.
  struct Complement {
    NodeId sigmoid;
    std::vector<NodeId> nodes;
  };

  /// Has the result of 1 and a value the shape of the value?
  bool keeps_shape(ValueId one, ValueId value) const {
    const ValueType &of_one = graph_.value(one).type, &of_value = graph_.value(value).type;
    return of_one.shape && (of_one.shape->empty() ||
                            (of_value.shape && of_one.shape->size() <= of_value.shape->size()));
  }

  Complement complement(ValueId value) const {
    if (const NodeId sub = made_by(value, "Sub"); sub.valid()) {
      const ValueId one = graph_.input(sub, 0), taken = graph_.input(sub, 1);
      if (!is_one(one) || !keeps_shape(one, taken)) return {};
      return {made_by(taken, "Sigmoid"), {sub}};
    }
    const NodeId add = made_by(value, "Add");
    for (size_t i = 0; add.valid() && i < 2; ++i) {
      const ValueId one = graph_.input(add, i), other = graph_.input(add, 1 - i);
      const NodeId neg = made_by(other, "Neg");
      if (is_one(one) && keeps_shape(one, other) && neg.valid())
        return {made_by(graph_.input(neg, 0), "Sigmoid"), {add, neg}};
    }
    return {};
  }

  bool rewrite(NodeId log) {
    const ValueId probability = graph_.input(log, 0);
    const NodeId softmax = made_by(probability, "Softmax");
    const NodeId sigmoid = made_by(probability, "Sigmoid");
    Complement other = complement(probability);
    const NodeId source = softmax.valid() ? softmax : sigmoid.valid() ? sigmoid : other.sigmoid;
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
    other.nodes.push_back(source);
    for (const NodeId node : other.nodes) {
      if (!graph_.has_uses(graph_.output(node))) graph_.remove(node);
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
