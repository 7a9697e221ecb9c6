// Slices, sorting and removal. Everything here is linear in the size of what it visits and uses no
// recursion over nodes.
#include "compiler/ir/walk.h"

#include <unordered_set>

#include "base/error.h"

namespace halfnote {
namespace {

/// Calls `visit(value)` for all operands of the nodes in the regions of `node`, and for the outputs
/// of the regions.
template <class Visit>
void for_each_inner_read(const Graph& graph, NodeId node, Visit&& visit) {
  std::vector<RegionId> open = graph.subgraphs(node);
  for (size_t i = 0; i < open.size(); ++i) {
    for (NodeId inner = graph.first(open[i]); inner.valid(); inner = graph.next(inner)) {
      for (ValueId input : graph.inputs(inner)) {
        if (input.valid()) visit(input);
      }
      for (RegionId deeper : graph.subgraphs(inner)) open.push_back(deeper);
    }
    for (ValueId output : graph.outputs(open[i])) {
      if (output.valid()) visit(output);
    }
  }
}

/// The nodes that own `region` and the regions around it, innermost first.
template <class Visit>
void for_each_owner(const Graph& graph, RegionId region, Visit&& visit) {
  for (; region.valid(); region = graph.parent(region)) {
    const NodeId owner = graph.region_owner(region);
    if (owner.valid()) visit(owner);
  }
}

std::vector<NodeId> in_order(const Graph& graph, const std::vector<bool>& chosen) {
  std::vector<NodeId> list;
  for (NodeId node : graph.all_nodes()) {
    if (chosen[node.index]) list.push_back(node);
  }
  return list;
}

/// Nodes to visit, each once.
class WorkList {
 public:
  explicit WorkList(const Graph& graph) : seen_(graph.node_capacity(), false) {}

  void add(NodeId node) {
    if (!node.valid() || seen_[node.index]) return;
    seen_[node.index] = true;
    open_.push_back(node);
  }
  NodeId next() {
    if (open_.empty()) return NodeId{};
    const NodeId node = open_.back();
    open_.pop_back();
    return node;
  }
  const std::vector<bool>& seen() const { return seen_; }

 private:
  std::vector<bool> seen_;
  std::vector<NodeId> open_;
};

/// For one region: the nodes that must stand before each node.
class RegionOrder {
 public:
  RegionOrder(const Graph& graph, RegionId region)
      : graph_(graph), region_(region), state_(graph.node_capacity(), State::kNew) {}

  /// The nodes in topological order, by depth-first search in the old order: a sorted list comes
  /// out unchanged.
  std::vector<NodeId> sorted() {
    for (NodeId node = graph_.first(region_); node.valid(); node = graph_.next(node)) place(node);
    return std::move(order_);
  }

 private:
  enum class State : uint8_t { kNew, kOpen, kPlaced };
  struct Frame {
    NodeId node;
    std::vector<ValueId> operands;
    size_t next = 0;
  };

  void open(NodeId node) {
    state_[node.index] = State::kOpen;
    stack_.push_back({node, reads(graph_, node)});
  }

  void place(NodeId root) {
    if (state_[root.index] != State::kNew) return;
    open(root);
    while (!stack_.empty()) {
      Frame& top = stack_.back();
      if (top.next == top.operands.size()) {
        state_[top.node.index] = State::kPlaced;
        order_.push_back(top.node);
        stack_.pop_back();
        continue;
      }
      const Value& value = graph_.value(top.operands[top.next++]);
      if (value.kind != ValueKind::kResult || value.region != region_) continue;
      const State state = state_[value.producer.index];
      if (state == State::kOpen) refuse_cycle(value.producer);
      if (state == State::kNew) open(value.producer);
    }
  }

  [[noreturn]] void refuse_cycle(NodeId node) const {
    const Node& data = graph_.node(node);
    throw Error(ErrorCode::kModel, "the graph has a cycle")
        .at({{}, graph_.label(node), data.op})
        .expected("nodes that depend on earlier results only", "a node that depends on itself");
  }

  const Graph& graph_;
  RegionId region_;
  std::vector<State> state_;
  std::vector<Frame> stack_;
  std::vector<NodeId> order_;
};

bool is_used(const Graph& graph, NodeId node) {
  for (ValueId output : graph.outputs(node)) {
    if (output.valid() && graph.has_uses(output)) return true;
  }
  return false;
}

}  // namespace

std::vector<ValueId> captures(const Graph& graph, NodeId node) {
  std::vector<ValueId> found;
  const RegionId home = graph.node(node).region;
  std::unordered_set<ValueId> seen;
  for_each_inner_read(graph, node, [&](ValueId value) {
    if (graph.is_inside(home, graph.value(value).region) && seen.insert(value).second) {
      found.push_back(value);
    }
  });
  return found;
}

std::vector<ValueId> reads(const Graph& graph, NodeId node) {
  std::vector<ValueId> found;
  std::unordered_set<ValueId> seen;
  for (ValueId input : graph.inputs(node)) {
    if (input.valid() && seen.insert(input).second) found.push_back(input);
  }
  for (ValueId value : captures(graph, node)) {
    if (seen.insert(value).second) found.push_back(value);
  }
  return found;
}

std::vector<NodeId> backward_slice(const Graph& graph, std::span<const ValueId> values) {
  WorkList work(graph);
  const auto follow = [&](ValueId id) {
    const Value& value = graph.value(id);
    if (value.kind == ValueKind::kResult) work.add(value.producer);
    // What a region's input is, only the owner of the region knows.
    if (value.kind == ValueKind::kRegionInput) work.add(graph.region_owner(value.region));
  };
  for (ValueId value : values) follow(value);
  for (NodeId node = work.next(); node.valid(); node = work.next()) {
    for (ValueId input : graph.inputs(node)) {
      if (input.valid()) follow(input);
    }
    for (RegionId region : graph.subgraphs(node)) {
      for (NodeId inner = graph.first(region); inner.valid(); inner = graph.next(inner)) {
        work.add(inner);
      }
      for (ValueId output : graph.outputs(region)) follow(output);
    }
  }
  return in_order(graph, work.seen());
}

std::vector<NodeId> forward_slice(const Graph& graph, std::span<const ValueId> values) {
  WorkList work(graph);
  const auto follow = [&](ValueId value) {
    for (const Use& use : graph.uses(value)) {
      if (use.kind == UseKind::kStateNext) continue;
      if (use.by_node()) work.add(use.node());
      const RegionId region = use.by_node() ? graph.node(use.node()).region : RegionId{use.owner};
      for_each_owner(graph, region, [&](NodeId owner) { work.add(owner); });
    }
  };
  for (ValueId value : values) follow(value);
  for (NodeId node = work.next(); node.valid(); node = work.next()) {
    for (ValueId output : graph.outputs(node)) {
      if (output.valid()) follow(output);
    }
    for (RegionId region : graph.subgraphs(node)) {
      for (ValueId input : graph.inputs(region)) follow(input);
    }
  }
  return in_order(graph, work.seen());
}

bool sort_region(Graph& graph, RegionId region) {
  const std::vector<NodeId> before = graph.nodes(region);
  const std::vector<NodeId> after = RegionOrder(graph, region).sorted();
  if (before == after) return false;
  for (NodeId node : after) graph.move_before(node, graph.end(region));
  return true;
}

size_t erase_dead(Graph& graph, const MayRemove& may_remove) {
  size_t count = 0;
  // Backwards, so that users go before what they use and inner nodes before their owners.
  const std::vector<NodeId> nodes = graph.all_nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (is_used(graph, *node) || !may_remove(graph, *node)) continue;
    graph.remove(*node);
    ++count;
  }
  return count;
}

size_t erase_unused_initializers(Graph& graph) {
  size_t count = 0;
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    const ValueId id{i};
    const Value& value = graph.value(id);
    if (!value.alive || value.kind != ValueKind::kInitializer || value.trainable) continue;
    if (graph.has_uses(id) || graph.state_of(id)) continue;
    graph.remove_value(id);
    ++count;
  }
  return count;
}

}  // namespace halfnote
