#include "passes/precision/cost.h"

#include <map>

#include "base/shape.h"
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

constexpr int64_t kNominalDim = 32;
constexpr int kMaxRounds = 8;

/// How many readers a value has in each type: a constant may have as many as the graph has nodes.
struct Readers {
  int64_t low = 0, f32 = 0;
};

class Cost {
 public:
  Cost(const Graph& graph, const FixedSlots& fixed, std::vector<bool> low)
      : graph_(graph), fixed_(fixed), low_(std::move(low)), readers_(graph.value_count()) {
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      for (const Use& use : graph.uses(ValueId{i})) {
        if (use.by_node() && reads_shape_only(graph.node(use.node()))) continue;
        ++(reads_low(use) ? readers_[i].low : readers_[i].f32);
      }
    }
  }

  bool is_low(NodeId node) const { return low_[node.index]; }

  void flip(NodeId node) {
    low_[node.index] = !low_[node.index];
    const int64_t more = low_[node.index] ? 1 : -1;
    const auto inputs = graph_.inputs(node);
    for (uint32_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].valid() || fixed_.reads_f32({UseKind::kNodeInput, node.index, i})) continue;
      readers_[inputs[i].index].low += more;
      readers_[inputs[i].index].f32 -= more;
    }
  }

  /// Bytes moved for all values that a node touches.
  int64_t around(NodeId node) const {
    int64_t bytes = 0;
    for (ValueId input : graph_.inputs(node)) bytes += input.valid() ? of_value(input) : 0;
    for (ValueId output : graph_.outputs(node)) bytes += output.valid() ? of_value(output) : 0;
    return bytes;
  }

 private:
  bool reads_low(const Use& use) const {
    return use.by_node() && low_[use.node().index] && !fixed_.reads_f32(use);
  }

  /// Bytes moved for one value under the present decisions.
  int64_t of_value(ValueId value) const {
    const Value& data = graph_.value(value);
    if (data.type.dtype != DType::kF32) return 0;
    const int64_t n = elements(data.type);
    const bool made_low =
        data.producer.valid() && low_[data.producer.index] && !fixed_.writes_f32(data);
    const Readers& readers = readers_[value.index];
    const int64_t reads = n * (2 * readers.low + 4 * readers.f32);
    const int64_t write = data.producer.valid() ? n * (made_low ? 2 : 4) : 0;
    const bool cast = (made_low ? readers.f32 : readers.low) > 0;
    return write + reads + (cast ? 6 * n : 0);
  }

  static int64_t elements(const ValueType& type) {
    if (!type.shape) return kNominalDim;
    int64_t count = 1;
    for (const Dim& dim : *type.shape) {
      count = checked_mul(count, dim.known() ? dim.value : kNominalDim);
      if (count > kMaxElements) return kMaxElements;
    }
    return count;
  }

  const Graph& graph_;
  const FixedSlots& fixed_;
  std::vector<bool> low_;
  std::vector<Readers> readers_;
};

}  // namespace

FixedSlots::FixedSlots(const Graph& graph) : slots_(graph.node_capacity()) {
  for (const NodeId id : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(id));
    if (row != nullptr) slots_[id.index] = {row->fp32_inputs, row->fp32_outputs};
  }
}

std::vector<CostFlip> refine_cost(const Graph& graph, const FixedSlots& fixed,
                                  const std::vector<bool>& low, const std::vector<bool>& free) {
  Cost cost(graph, fixed, low);
  const std::vector<NodeId> nodes = graph.nodes();
  std::map<NodeId, int64_t> saved;
  bool moved = true;
  for (int round = 0; moved && round < kMaxRounds; ++round) {
    moved = false;
    for (NodeId node : nodes) {
      if (!free[node.index]) continue;
      const int64_t now = cost.around(node);
      cost.flip(node);
      const int64_t then = cost.around(node);
      if (then < now) {
        saved[node] += now - then;
        moved = true;
      } else {
        cost.flip(node);
      }
    }
  }
  std::vector<CostFlip> flips;
  for (NodeId node : nodes) {
    if (cost.is_low(node) != low[node.index])
      flips.push_back({node, cost.is_low(node), saved[node]});
  }
  return flips;
}

}  // namespace halfnote
