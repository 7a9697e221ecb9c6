// eliminate_common: merges nodes that compute the same thing, and constants that hold the same
// bytes.
//
//   a = Exp(x)  b = Exp(x)  c = Add(a, b)      ──▶      a = Exp(x)  c = Add(a, a)
//
// Exact. Two nodes are the same when op, attributes, operands, result count and role are. Leaves
// alone: random nodes, nodes with subgraphs, parameters that are trained or frozen, states, running
// statistics, results that are graph outputs under names of their own.
#include <unordered_map>

#include "compiler/ir/hash.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr int64_t kMaxMergedConstant =
    1 << 16;  // elements: larger equal constants are rare, and costly to compare

class Merger {
 public:
  explicit Merger(Graph& graph) : graph_(graph) {}

  bool run() {
    merge_constants();
    for (NodeId node : graph_.nodes()) visit(node);
    return changed_;
  }

 private:
  void merge_constants() {
    std::unordered_map<uint64_t, std::vector<ValueId>> seen;
    for (ValueId id : graph_.initializers()) {
      const Tensor* tensor = graph_.constant(id);
      if (tensor == nullptr || tensor->size() > kMaxMergedConstant) continue;
      if (graph_.value(id).frozen) continue;
      if (may_become_state(id)) continue;
      auto& group = seen[content_hash(*tensor)];
      const ValueId same = find_same(group, *tensor);
      if (!same.valid()) {
        group.push_back(id);
        continue;
      }
      if (!only_node_uses(id)) continue;
      graph_.replace_uses(id, same);
      graph_.remove_value(id);
      changed_ = true;
    }
  }

  ValueId find_same(const std::vector<ValueId>& group, const Tensor& tensor) const {
    for (ValueId other : group) {
      if (identical(graph_.value(other).tensor, tensor)) return other;
    }
    return {};
  }

  /// Running statistics are equal at first only: each becomes a state of its own (force_training),
  /// and the evaluation step reads that state by name.
  bool may_become_state(ValueId value) const {
    for (const Use& use : graph_.uses(value)) {
      if (!use.by_node() || use.slot < 3) continue;
      const Node& node = graph_.node(use.node());
      if (node.op == "BatchNormalization") return true;
    }
    return false;
  }

  bool only_node_uses(ValueId value) const {
    for (const Use& use : graph_.uses(value)) {
      if (!use.by_node()) return false;
    }
    return true;
  }

  static bool mergeable(const Graph& graph, NodeId id) {
    const Node& node = graph.node(id);
    const OperatorRow* row = find_operator(node);
    return row != nullptr && row->purity == Purity::kPure && graph.subgraphs(id).empty();
  }

  uint64_t key(NodeId id) const {
    const Node& node = graph_.node(id);
    uint64_t hash = hash_mix(hash_text(node.op), hash_text(node.domain));
    hash = hash_mix(hash, content_hash(node.attributes));
    for (ValueId input : graph_.inputs(id)) hash = hash_mix(hash, input.index);
    return hash;
  }

  bool same(NodeId a, NodeId b) const {
    const Node& x = graph_.node(a);
    const Node& y = graph_.node(b);
    const auto p = graph_.inputs(a);
    const auto q = graph_.inputs(b);
    if (x.op != y.op || x.domain != y.domain || x.role != y.role ||
        !(x.attributes == y.attributes) || !std::equal(p.begin(), p.end(), q.begin(), q.end())) {
      return false;
    }
    // The kept node must have every result that the other one has.
    for (size_t i = 0; i < graph_.outputs(b).size(); ++i) {
      if (graph_.output(b, i).valid() && !graph_.output(a, i).valid()) return false;
    }
    return true;
  }

  void visit(NodeId id) {
    if (!mergeable(graph_, id)) return;
    auto& group = seen_[key(id)];
    for (NodeId other : group) {
      if (same(other, id) && replace(id, other)) return;
    }
    group.push_back(id);
  }

  bool replace(NodeId id, NodeId by) {
    for (ValueId output : graph_.outputs(id)) {
      if (output.valid() && !only_node_uses(output)) return false;
    }
    for (size_t i = 0; i < graph_.outputs(id).size(); ++i) {
      if (graph_.output(id, i).valid())
        graph_.replace_uses(graph_.output(id, i), graph_.output(by, i));
    }
    graph_.remove(id);
    changed_ = true;
    return true;
  }

  Graph& graph_;
  std::unordered_map<uint64_t, std::vector<NodeId>> seen_;
  bool changed_ = false;
};

}  // namespace

bool eliminate_common(Graph& graph, PassContext&) { return Merger(graph).run(); }

}  // namespace halfnote
