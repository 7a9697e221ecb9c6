// compute_late: a node moves down towards the first one that reads it, as far as the step holds
// less by that: behind the last other reader of its operands, and on where its operands take less
// until then than its results would.
//
//   dx = ConvGradInput (dy, w)  dw = ConvGradWeight (dy, x)  u = Relu (dx)
//       ──▶
//   dw = ConvGradWeight (dy, x)  dx = ConvGradInput (dy, w)  u = Relu (dx)
//
// Exact: the order alone changes. Here x goes before dx comes. An optimizer node counts as standing
// where its operands are ready (update-early puts it there); if it would have to wait for `dx`, as
// that reads the weight it writes, its gradient counts as an operand. Leaves alone: updates and
// loss scaling, what draws random numbers or has bodies, what only those or the end of the step
// read.
#include "passes/device/compute_late.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"
#include "passes/device/live_ranges.h"

namespace halfnote {
namespace {

bool is_of_update(const Graph& graph, NodeId node) {
  const Role role = graph.node(node).role;
  return role == Role::kOptimizer || role == Role::kScaling;
}

/// Memory that is let go behind a node.
struct Held {
  ValueId root;
  NodeId until;
  int64_t bytes = 0;
};

constexpr int kMostLooks = 64;

class LateMover {
 public:
  explicit LateMover(Graph& graph)
      : graph_(graph),
        live_(graph),
        last_(graph.value_count()),
        to_the_end_(graph.value_count(), false),
        freed_(graph.node_capacity()),
        writers_(graph.value_count()) {
    for (const State& state : graph.states())
      writers_[state.current.index] = graph.value(state.next).producer;
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      const ValueId root = live_.root(ValueId{i});
      if (live_.last(root) == LiveRanges::kEnd) to_the_end_[root.index] = true;
    }
  }

  bool run() {
    bool changed = false;
    const std::vector<NodeId> nodes(live_.nodes().begin(), live_.nodes().end());
    for (size_t i = nodes.size(); i-- > 0;) {
      const NodeId place = place_of(nodes[i]);
      if (place.valid() && graph_.next(nodes[i]) != place) {
        graph_.move_before(nodes[i], graph_.before(place));
        changed = true;
      }
      note_reads(nodes[i]);
    }
    return changed;
  }

 private:
  bool may_move(NodeId id) const {
    if (is_of_update(graph_, id) || !graph_.subgraphs(id).empty()) return false;
    const OperatorRow* row = find_operator(graph_.node(id));
    return row != nullptr && row->purity == Purity::kPure;
  }

  /// The node of the main region that `node` stands in.
  NodeId outermost(NodeId node) const {
    while (graph_.node(node).region != graph_.main())
      node = graph_.region_owner(graph_.node(node).region);
    return node;
  }

  /// Before what the node is to stand; invalid: where it is.
  NodeId place_of(NodeId node) const {
    if (!may_move(node)) return {};
    NodeId first;  // that reads a result
    int64_t gain = 0;
    for (const ValueId output : graph_.outputs(node)) {
      if (!output.valid()) continue;
      if (live_.root(output) == output) gain += live_.bytes(output);
      for (const Use& use : graph_.uses(output)) {
        if (!use.by_node()) continue;
        const NodeId reader = outermost(use.node());
        if (!first.valid() || graph_.is_before(reader, first)) first = reader;
      }
    }
    if (gain == 0 || !first.valid() || is_of_update(graph_, first)) return {};
    const std::optional<std::vector<Held>> all = held_until(node, first);
    if (!all) return {};
    // Behind the last of them that costs less than is gained.
    int64_t cost = 0;
    for (const Held& held : *all) {
      if (cost >= gain) return behind_what_frees(node, graph_.next(held.until));
      cost += held.bytes;
    }
    return behind_what_frees(node, cost < gain ? first : graph_.next(all->back().until));
  }

  /// Before `place` or, if nothing is let go on the way there, further up: behind the last node
  /// that lets go of something that `node` does not read. So it passes none that is like itself.
  NodeId behind_what_frees(NodeId node, NodeId place) const {
    const auto reads = [&](ValueId root) {
      return std::ranges::any_of(graph_.inputs(node), [&](ValueId input) {
        return input.valid() && live_.root(input) == root;
      });
    };
    for (int looks = 0; looks < kMostLooks; ++looks) {
      const NodeId above = graph_.prev(place);
      if (above == node || !std::ranges::all_of(freed_[above.index], reads)) break;
      place = above;
    }
    return place;
  }

  /// What is let go before `place`, in that order, and has to wait if `node` moves further than
  /// there. Nothing if it must not stand there.
  std::optional<std::vector<Held>> held_until(NodeId node, NodeId place) const {
    std::vector<Held> all;
    const auto hold = [&](ValueId root, NodeId until) {
      if (live_.first(root) == LiveRanges::kNever || to_the_end_[root.index]) return;
      if (until.valid() && !graph_.is_before(until, place)) return;
      const bool known = std::ranges::any_of(all, [&](const Held& h) { return h.root == root; });
      if (!known) all.push_back({root, until.valid() ? until : node, live_.bytes(root)});
    };
    for (const ValueId input : graph_.inputs(node)) {
      if (!input.valid()) continue;
      const ValueId root = live_.root(input);
      hold(root, last_[root.index]);
      const NodeId writer = writers_[root.index];
      if (!writer.valid()) continue;
      if (graph_.is_before(writer, place)) return std::nullopt;
      for (const ValueId waits : waiting(node, writer, place))
        hold(live_.root(waits), producer(graph_, waits));
    }
    std::ranges::stable_sort(
        all, [&](const Held& a, const Held& b) { return graph_.is_before(a.until, b.until); });
    return all;
  }

  /// Operands of an update that could run between `node` and `place` and would have to wait.
  std::vector<ValueId> waiting(NodeId node, NodeId writer, NodeId place) const {
    std::vector<ValueId> between;
    for (const ValueId input : graph_.inputs(writer)) {
      const NodeId maker = input.valid() ? producer(graph_, input) : NodeId{};
      if (!maker.valid()) continue;
      if (!graph_.is_before(maker, place)) return {};  // it waits for something else
      if (graph_.is_before(node, maker)) between.push_back(input);
    }
    return between;
  }

  /// A node stands where it will; readers before it have not been seen yet.
  void note_reads(NodeId node) {
    if (is_of_update(graph_, node)) return;
    for (const ValueId input : graph_.inputs(node)) note_read(input, node);
    for (const ValueId capture : captures(graph_, node)) note_read(capture, node);
  }

  void note_read(ValueId value, NodeId node) {
    if (!value.valid()) return;
    const ValueId root = live_.root(value);
    NodeId& last = last_[root.index];
    if (last.valid() && !graph_.is_before(last, node)) return;
    if (live_.first(root) != LiveRanges::kNever && !to_the_end_[root.index]) {
      if (last.valid()) std::erase(freed_[last.index], root);
      freed_[node.index].push_back(root);
    }
    last = node;
  }

  Graph& graph_;
  LiveRanges live_;                          // of the order before
  std::vector<NodeId> last_;                 // by root: the last of the nodes seen that read it
  std::vector<char> to_the_end_;             // by root
  std::vector<std::vector<ValueId>> freed_;  // by node: the roots of which it is the last
  std::vector<NodeId> writers_;              // by state: what makes its next value
};

}  // namespace

bool compute_late(Graph& graph, PassContext&) { return LateMover(graph).run(); }

}  // namespace halfnote
