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

/// Local search over the nodes that `free` allows: a node flips while that lowers the bytes moved,
/// counting for every f32 value its write, each read, and one cast (read and write) per type that
/// its readers want but its producer does not give. `low` holds the decisions so far, by node
/// index. Symbolic dims count as 32, so that the result depends on the graph alone.
std::vector<CostFlip> refine_cost(const Graph& graph, std::vector<bool> low,
                                  const std::vector<bool>& free);

}  // namespace halfnote
