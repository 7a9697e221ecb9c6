// Moves each optimizer node up to where its operands are ready and nobody reads the old state any
// more: learning rate and counters to the front, updates behind their gradients. Gradients then
// live for a moment instead of until the end of the step. Where an update
// waits for all gradients (clip, finite check), it stays behind what it waits for. Of such updates
// those of weights whose 16-bit copy is read last come first: gradients may lie in copies that are
// no longer read until these are written (runtime/core/borrowed_space.h).
#include <algorithm>
#include <unordered_map>

#include "compiler/ops/operator.h"

#include "passes/passes.h"

namespace halfnote {
namespace {

class Mover {
 public:
  explicit Mover(Graph& graph) : graph_(graph) {}

  bool run() {
    for (NodeId node : in_order()) place(node);
    return changed_;
  }

 private:
  /// Updates with a copy behind all other nodes, the copy that is read last first.
  std::vector<NodeId> in_order() const {
    std::unordered_map<NodeId, int> position;
    std::vector<NodeId> order, updates;
    for (NodeId node : graph_.nodes()) {
      position[node] = static_cast<int>(position.size());
      if (graph_.node(node).role != Role::kOptimizer || !graph_.subgraphs(node).empty()) continue;
      (copy_of(node).valid() ? updates : order).push_back(node);
    }
    const auto last_read = [&](NodeId update) {
      int last = -1;
      for (const Use& use : graph_.uses(copy_of(update))) {
        if (use.by_node()) last = std::max(last, position.at(outermost(use.node())));
      }
      return last;
    };
    std::vector<std::pair<int, NodeId>> dated;
    for (NodeId update : updates) dated.emplace_back(last_read(update), update);
    std::ranges::stable_sort(dated, std::ranges::greater{}, &std::pair<int, NodeId>::first);
    for (const auto& [last, update] : dated) order.push_back(update);
    return order;
  }

  /// The 16-bit copy that an update writes, a state that it does not read; invalid if there is
  /// none.
  ValueId copy_of(NodeId node) const {
    const OperatorRow* row = find_operator(graph_.node(node));
    if (row == nullptr || row->commit_input < 0) return {};
    const auto outputs = graph_.outputs(node);
    for (const Use& use : graph_.uses(outputs.back())) {
      if (use.kind != UseKind::kStateNext) continue;
      const ValueId old = graph_.states()[use.slot].current;
      const bool copies = is_16bit_float(graph_.value(old).type.dtype);
      return copies ? old : ValueId{};
    }
    return {};
  }

  /// The node of the main region that `node` stands in.
  NodeId outermost(NodeId node) const {
    while (graph_.node(node).region != graph_.main()) {
      node = graph_.region_owner(graph_.node(node).region);
    }
    return node;
  }

  void wait_for(NodeId node) {
    if (!last_.valid() || graph_.is_before(last_, node)) last_ = node;
  }

  /// Waits for all readers of the states that `node` gives new values; false: one stands behind it.
  bool wait_for_readers(NodeId node) {
    for (ValueId output : graph_.outputs(node)) {
      if (!output.valid()) continue;
      for (const Use& use : graph_.uses(output)) {
        if (use.kind != UseKind::kStateNext) continue;
        for (const Use& read : graph_.uses(graph_.states()[use.slot].current)) {
          if (!read.by_node()) continue;
          const NodeId reader = outermost(read.node());
          if (reader == node) continue;
          if (graph_.is_before(node, reader)) return false;
          wait_for(reader);
        }
      }
    }
    return true;
  }

  void place(NodeId node) {
    last_ = NodeId{};
    if (!wait_for_readers(node)) return;
    for (ValueId input : graph_.inputs(node)) {
      if (input.valid() && graph_.value(input).kind == ValueKind::kResult) {
        wait_for(graph_.value(input).producer);
      }
    }
    NodeId& tail = tails_.emplace(last_, last_).first->second;  // what was placed behind last_
    const NodeId next = tail.valid() ? graph_.next(tail) : graph_.first(graph_.main());
    if (next != node) {
      graph_.move_before(node, {graph_.main(), next});
      changed_ = true;
    }
    tail = node;
  }

  Graph& graph_;
  NodeId last_;  // the latest node that the current one must stand behind; invalid: none
  std::unordered_map<NodeId, NodeId> tails_;
  bool changed_ = false;
};

}  // namespace

bool update_early(Graph& graph, PassContext&) { return Mover(graph).run(); }

}  // namespace halfnote
