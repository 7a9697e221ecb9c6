#include "passes/precision/cost.h"

#include <map>

#include "base/shape.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

constexpr int64_t kNominalDim = 32;
constexpr int kMaxRounds = 8;

class Cost {
 public:
  Cost(const Graph& graph, const FixedSlots& fixed, std::vector<bool>& low)
      : graph_(graph), fixed_(fixed), low_(low) {}

  /// Bytes moved for one value under the present decisions.
  int64_t of_value(ValueId value) const {
    const Value& data = graph_.value(value);
    if (data.type.dtype != DType::kF32) return 0;
    const int64_t n = elements(data.type);
    const bool made_low =
        data.producer.valid() && low_[data.producer.index] && !fixed_.writes_f32(data);
    bool want_low = false, want_f32 = false;
    int64_t reads = 0;
    for (const Use& use : graph_.uses(value)) {
      const bool reader_low = use.by_node() && low_[use.node().index] && !fixed_.reads_f32(use);
      (reader_low ? want_low : want_f32) = true;
      reads += n * (reader_low ? 2 : 4);
    }
    const int64_t write = data.producer.valid() ? n * (made_low ? 2 : 4) : 0;
    const bool cast = made_low ? want_f32 : want_low;
    return write + reads + (cast ? 6 * n : 0);
  }

  /// Bytes moved for all values that a node touches.
  int64_t around(NodeId node) const {
    int64_t bytes = 0;
    for (ValueId input : graph_.inputs(node)) bytes += input.valid() ? of_value(input) : 0;
    for (ValueId output : graph_.outputs(node)) bytes += output.valid() ? of_value(output) : 0;
    return bytes;
  }

 private:
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
  std::vector<bool>& low_;
};

}  // namespace

FixedSlots::FixedSlots(const Graph& graph) : slots_(graph.node_capacity()) {
  for (const NodeId id : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(id));
    if (row != nullptr) slots_[id.index] = {row->fp32_inputs, row->fp32_outputs};
  }
}

std::vector<CostFlip> refine_cost(const Graph& graph, const FixedSlots& fixed,
                                  std::vector<bool> low, const std::vector<bool>& free) {
  const Cost cost(graph, fixed, low);
  const std::vector<NodeId> nodes = graph.nodes();
  std::map<NodeId, int64_t> saved;
  const std::vector<bool> before = low;
  bool moved = true;
  for (int round = 0; moved && round < kMaxRounds; ++round) {
    moved = false;
    for (NodeId node : nodes) {
      if (!free[node.index]) continue;
      const int64_t now = cost.around(node);
      low[node.index] = !low[node.index];
      const int64_t then = cost.around(node);
      if (then < now) {
        saved[node] += now - then;
        moved = true;
      } else {
        low[node.index] = !low[node.index];
      }
    }
  }
  std::vector<CostFlip> flips;
  for (NodeId node : nodes) {
    if (low[node.index] != before[node.index])
      flips.push_back({node, low[node.index], saved[node]});
  }
  return flips;
}

}  // namespace halfnote
