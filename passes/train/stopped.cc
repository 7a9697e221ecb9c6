#include "passes/train/stopped.h"

#include <algorithm>
#include <set>
#include <span>

#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"
#include "compiler/ops/rule_support.h"
#include "passes/train/gradient_path.h"

namespace halfnote {
namespace {

/// The node that would undo `node` behind its result if it had its parameters.
NodeId find_undoing(const Graph& graph, NodeId node, ValueId output) {
  for (NodeId user : graph.users(output)) {
    if (undone_otherwise(graph, user) == node) return user;
    const OperatorRow* row = find_operator(graph.node(user));
    if (row == nullptr || !row->saturates) continue;
    const NodeId behind = find_undoing(graph, node, graph.output(user));
    if (behind.valid()) return behind;
  }
  return {};
}

/// Has the op no gradient whatever it is written in? What is drawn has none.
bool never_has(const OperatorRow& row) {
  return row.lower != nullptr && row.purity == Purity::kRandom;
}

class ClosedWays {
 public:
  ClosedWays(Graph& graph, RegionId region, std::span<const ValueId> sources,
             std::span<const ValueId> ends, const InferNode& infer,
             const std::function<bool(NodeId)>& judged)
      : graph_(graph), infer_(infer), judged_(judged), backward_(graph, region, infer, problems_) {
    const std::vector<NodeId> nodes = graph.nodes(region);
    depends_ = reached_from(graph, nodes, sources, Reach::kAllTypes);
    wanted_.assign(graph.value_count(), false);
    for (ValueId end : ends) wanted_[end.index] = true;
    open_ = wanted_;
    for (NodeId node : nodes_between(graph, nodes, depends_, ends)) add(node);
  }

  UnsupportedOps run(std::span<const ValueId> sources) {
    std::vector<NodeId> order;
    for (const Step& step : steps_) order.push_back(step.node);
    std::erase_if(order, [&](NodeId node) {
      return !judged_(node) || !reads_gradients(node) || passed_by_.contains(node);
    });
    backward_.ask_rules(order, depends_, wanted_, judged_);
    for (const Step& step : steps_) visit(step);
    const auto is_open = [&](ValueId source) { return open_[source.index]; };
    if (std::ranges::any_of(sources, is_open)) return {};
    UnsupportedOps all;
    for (auto node = closed_.rbegin(); node != closed_.rend(); ++node) {
      const UnsupportedOps inside = closed_inside(*node);
      all.add_new(inside, {});
      if (inside.empty()) all.add(graph_, *node, why_stopped(graph_, *node));
    }
    const UnsupportedOps stops = all;
    all.add_new(problems_, {&stops});
    return all;
  }

 private:
  /// A node as it was before rules gave it another form.
  struct Step {
    NodeId node;
    std::vector<ValueId> operands, outputs;  // which a gradient could be asked of, and could reach
  };

  bool carries_gradients(ValueId value) const {
    return value.valid() && depends_[value.index] && carries_floats(graph_.value(value).type);
  }

  void add(NodeId node) {
    Step step{node, operands_of(graph_, node), {}};
    for (ValueId output : graph_.outputs(node)) {
      if (!output.valid() || !wanted_[output.index]) continue;
      if (carries_floats(graph_.value(output).type)) step.outputs.push_back(output);
    }
    if (step.operands.size() > graph_.inputs(node).size()) pass_by(node, step.operands.back());
    for (ValueId operand : step.operands) {
      if (operand.valid() && operand.index < wanted_.size()) wanted_[operand.index] = true;
    }
    steps_.push_back(std::move(step));
  }

  /// What lies between `node` and the operand that it takes back to floats stops nothing.
  void pass_by(NodeId node, ValueId from) {
    const OperatorRow* row = find_operator(graph_.node(node));
    if (row == nullptr || row->undoes.empty()) return;
    NodeId at = producer(graph_, graph_.input(node, 0));
    while (at.valid() && passed_by_.insert(at).second && graph_.input(at, 0) != from) {
      at = producer(graph_, graph_.input(at, 0));
    }
  }

  bool reads_gradients(NodeId node) const {
    return std::ranges::any_of(operands_of(graph_, node),
                               [&](ValueId input) { return carries_gradients(input); });
  }

  /// Of If, Loop and Scan: what lets none through in the bodies.
  UnsupportedOps closed_inside(NodeId node) const {
    UnsupportedOps all;
    for (RegionId body : graph_.subgraphs(node)) {
      std::vector<ValueId> sources;
      const auto add = [&](ValueId value) {
        if (carries_floats(graph_.value(value).type)) sources.push_back(value);
      };
      for (ValueId capture : captures(graph_, node)) {
        if (capture.index < depends_.size() && depends_[capture.index]) add(capture);
      }
      const auto given = graph_.inputs(node), inner = graph_.inputs(body);
      for (size_t i = 0; i < std::min(given.size(), inner.size()); ++i) {
        const ValueId from = given[i];
        if (from.valid() && from.index < depends_.size() && depends_[from.index]) add(inner[i]);
      }
      if (sources.empty()) continue;
      const std::vector<ValueId> ends(graph_.outputs(body).begin(), graph_.outputs(body).end());
      all.add_new(ClosedWays(graph_, body, sources, ends, infer_, judged_).run(sources), {});
    }
    return all;
  }

  /// Does operand `i` get a gradient if the results have one?
  bool passes(const Step& step, size_t i) const {
    if (step.outputs.empty()) return false;
    const OperatorRow* row = find_operator(graph_.node(step.node));
    if (row == nullptr) return true;
    if (row->gradient == no_slope) return false;
    if (row->gradient == nullptr) return !never_has(*row);
    return backward_.gives(step.node, i);
  }

  void visit(const Step& step) {
    const bool reached =
        std::ranges::any_of(step.outputs, [&](ValueId output) { return open_[output.index]; });
    bool closes = false;
    for (size_t i = 0; i < step.operands.size(); ++i) {
      const ValueId operand = step.operands[i];
      if (!carries_gradients(operand)) continue;
      const bool through = passes(step, i);
      if (through && reached) open_[operand.index] = true;
      closes |= !through;
    }
    if (!closes || passed_by_.contains(step.node) || !graph_.node(step.node).alive) return;
    const OperatorRow* row = find_operator(graph_.node(step.node));
    if (row == nullptr) return;
    // What others may still take the place of.
    const bool raw = row->gradient == nullptr && !judged_(step.node);
    if (!raw || never_has(*row)) closed_.push_back(step.node);
  }

  Graph& graph_;
  const InferNode& infer_;
  const std::function<bool(NodeId)>& judged_;
  UnsupportedOps problems_;
  Backward backward_;
  std::vector<bool> depends_, wanted_;  // by value: on a weight, by the ends; of any type
  std::vector<bool> open_;              // by value: a gradient comes here
  std::vector<Step> steps_;             // last first
  std::vector<NodeId> closed_;          // likewise
  std::set<NodeId> passed_by_;
};

}  // namespace

void StoppedGradients::find_ways() {
  before_loss_.assign(graph_.value_count(), false);
  users_of_.resize(graph_.value_count());
  before_loss_[loss_.index] = true;
  const std::vector<bool> all(graph_.value_count(), true);
  const std::vector<NodeId> nodes = graph_.nodes();
  const std::vector<NodeId> between = nodes_between(graph_, nodes, all, {&loss_, 1});
  for (auto node = between.rbegin(); node != between.rend(); ++node) {
    for (ValueId output : graph_.outputs(*node)) {
      if (output.valid()) before_loss_[output.index] = true;
    }
    for (ValueId input : operands_of(graph_, *node)) {
      if (input.valid()) users_of_[input.index].push_back(*node);
    }
  }
}

std::string StoppedGradients::why_untrained(ValueId weight) {
  if (before_loss_.empty()) find_ways();
  std::vector<ValueId> open = {weight};
  std::set<ValueId> seen = {weight};
  std::string first;
  for (size_t i = 0; i < open.size(); ++i) {
    for (NodeId user : users_of_[open[i].index]) {
      bool stops = false;
      for (ValueId output : graph_.outputs(user)) {
        if (!output.valid() || !before_loss_[output.index]) continue;
        // A gradient comes this far, or none could come back over integers.
        if (backward_.gradient(output).valid() || !carries_floats(graph_.value(output).type)) {
          stops = true;
        } else if (seen.insert(output).second) {
          open.push_back(output);
        }
      }
      if (!stops) continue;
      const std::string why = why_stopped(graph_, user);
      all_.add(graph_, user, why);
      if (first.empty()) {
        const NodeInModel told = as_in_model(graph_, user);
        first = "no gradient passes " + told.name + " (" + told.op + "), " + why;
      }
    }
  }
  return first.empty() ? "the loss does not depend on this parameter" : first;
}

std::string why_stopped(const Graph& graph, NodeId node) {
  const OperatorRow* row = find_operator(graph.node(node));
  for (ValueId output : graph.outputs(node)) {
    if (!output.valid() || carries_floats(graph.value(output).type)) continue;
    if (const NodeId user = find_undoing(graph, node, output); user.valid()) {
      return graph.label(user) + " (" + graph.node(user).op +
             ") does not undo it: another scale, zero point or axis";
    }
    if (row != nullptr && row->gradient == nullptr) return why_no_gradient(graph, node);
    return "its result is " + std::string(short_name(graph.value(output).type.dtype));
  }
  if (row != nullptr && row->gradient == nullptr) return why_no_gradient(graph, node);
  if (row != nullptr && !row->note.empty()) return std::string(row->note);
  return "what it gives does not change with this operand in small steps";
}

UnsupportedOps find_closed_ways(Graph& graph, std::span<const ValueId> sources,
                                std::span<const ValueId> ends, const InferNode& infer,
                                const std::function<bool(NodeId)>& judged) {
  return ClosedWays(graph, graph.main(), sources, ends, infer, judged).run(sources);
}

}  // namespace halfnote
