// The cost refinement of assign_precision: which single nodes are better off in the other type.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

struct CostFlip {
  NodeId node;
  bool low = false;  // the new decision
  int64_t saved_bytes = 0;
};

/// The operand and result slots that stay f32 whatever their node computes in, looked up once.
class FixedSlots {
 public:
  explicit FixedSlots(const Graph& graph);
  /// Of a use by a node.
  bool reads_f32(const Use& use) const { return has(slots_[use.owner].inputs, use.slot); }
  /// Of a value that a node made.
  bool writes_f32(const Value& value) const {
    return has(slots_[value.producer.index].outputs, value.output);
  }

 private:
  struct Slots {
    uint32_t inputs = 0, outputs = 0;
  };
  static bool has(uint32_t slots, uint32_t slot) { return slot < 32 && (slots >> slot & 1u) != 0; }

  std::vector<Slots> slots_;  // by node index
};

/// Local search over the nodes that `free` allows: a node flips while that lowers the bytes moved,
/// counting for every f32 value its write, each read, and one cast (read and write) per type that
/// its readers want but its producer does not give. `low` holds the decisions so far, by node
/// index. Symbolic dims count as 32, so that the result depends on the graph alone.
std::vector<CostFlip> refine_cost(const Graph& graph, const FixedSlots& fixed,
                                  const std::vector<bool>& low, const std::vector<bool>& free);

}  // namespace halfnote
