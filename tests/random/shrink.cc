#include "tests/random/shrink.h"

#include "base/error.h"
#include "compiler/ir/verify.h"
#include "passes/canonical/infer_shapes.h"
#include "runtime/core/evaluate.h"

namespace halfnote::random {
namespace {

/// What no output needs goes: nodes, of bodies too, then initializers.
void sweep(Graph& graph) {
  std::vector<NodeId> nodes = graph.all_nodes();
  for (size_t i = nodes.size(); i > 0; --i) {
    if (!graph.node(nodes[i - 1]).alive) continue;
    bool used = false;
    for (ValueId output : graph.outputs(nodes[i - 1])) {
      used |= output.valid() && graph.has_uses(output);
    }
    if (!used) graph.remove(nodes[i - 1]);
  }
  for (ValueId id : graph.initializers()) {
    if (!graph.has_uses(id)) graph.remove_value(id);
  }
}

/// All results of a node, at the problem's batch.
std::vector<Tensor> results_of(const Problem& problem, NodeId wanted) {
  Graph graph = problem.model.graph;
  std::vector<ValueId> outputs;
  for (ValueId id : graph.outputs(wanted)) {
    if (id.valid()) outputs.push_back(id);
  }
  graph.set_outputs(graph.main(), outputs);
  return evaluate(graph, problem.inputs);
}

class Shrinker {
 public:
  Shrinker(Problem problem, const std::function<bool(const Problem&)>& shows)
      : best_(std::move(problem)), shows_(shows) {}

  Problem run() {
    for (bool smaller = true; smaller;) {
      smaller = plain_settings();
      const std::vector<NodeId> nodes = best_.model.graph.all_nodes();
      for (size_t i = nodes.size(); i > 0 && !smaller; --i) smaller = without(nodes[i - 1]);
      if (smaller) continue;
      for (Problem& problem : with_smaller_sizes(best_)) {
        if ((smaller = accept(std::move(problem)))) break;
      }
    }
    return std::move(best_);
  }

 private:
  bool accept(Problem problem) {
    try {
      sweep(problem.model.graph);
      verify(problem.model.graph);
      infer_graph(problem.model.graph);
      evaluate(problem.model.graph, problem.inputs);  // throws where data no longer fit
      if (!shows_(problem)) return false;
    } catch (const Error&) {
      return false;
    }
    best_ = std::move(problem);
    return true;
  }

  bool plain_settings() {
    Problem plain = best_;
    if (plain.train.tied.empty() && plain.train.optimizer.kind == "sgd") return false;
    plain.train.tied.clear();
    plain.train.optimizer = {};
    plain.train.optimizer.kind = "sgd";
    plain.train.optimizer.lr = 0.0625f;
    return accept(std::move(plain));
  }

  bool without(NodeId node) {
    const Graph& graph = best_.model.graph;
    for (size_t k = 0; k < graph.inputs(node).size(); ++k) {
      const ValueId operand = graph.input(node, k);
      const ValueId result = graph.output(node);
      if (!operand.valid() || !result.valid()) continue;
      if (!(graph.value(operand).type == graph.value(result).type)) continue;
      Problem smaller = best_;
      if (pass(smaller.model.graph, result, operand) && accept(std::move(smaller))) return true;
    }
    return graph.node(node).region == graph.main() && as_constants(node);
  }

  bool as_constants(NodeId node) {
    const std::vector<Tensor> results = results_of(best_, node);
    Problem smaller = best_;
    Graph& graph = smaller.model.graph;
    size_t next = 0;
    const std::vector<ValueId> outputs(graph.outputs(node).begin(), graph.outputs(node).end());
    for (ValueId id : outputs) {
      if (!id.valid()) continue;
      const ValueId constant = graph.add_initializer(graph.unique_name("k"), results[next++]);
      if (!pass(graph, id, constant)) return false;
    }
    return accept(std::move(smaller));
  }

  /// `to` in place of `from`, under its name where that is the loss; false where `to` cannot be
  /// the loss.
  static bool pass(Graph& graph, ValueId from, ValueId to) {
    const bool is_loss = graph.value(from).name == "loss";
    if (is_loss && graph.value(to).kind != ValueKind::kResult) return false;
    graph.replace_uses(from, to);
    if (!is_loss) return true;
    graph.rename(from, graph.unique_name("old"));
    graph.rename(to, "loss");
    return true;
  }

  Problem best_;
  const std::function<bool(const Problem&)>& shows_;
};

}  // namespace

Problem shrink(const Problem& problem, const std::function<bool(const Problem&)>& shows) {
  return Shrinker(problem, shows).run();
}

}  // namespace halfnote::random
