// Which nodes a gradient has to flow through, and which of them have no rule for it.
#pragma once

#include <span>
#include <vector>

#include "compiler/ir/graph.h"
#include "passes/unsupported.h"

namespace halfnote {

/// Values on a path from a trainable initializer, by index: those that can have a gradient. A value
/// of unknown type may be a float.
std::vector<bool> reached_from_weights(const Graph& graph);

/// Nodes of the main region that lie between the reached values and these ones, last first.
std::vector<NodeId> nodes_between(const Graph& graph, const std::vector<bool>& reached,
                                  std::span<const ValueId> ends);

/// Notes every one of the nodes, if it is not noted yet, whose op is known and has neither a
/// gradient nor a lowering.
void add_without_gradient(const Graph& graph, std::span<const NodeId> nodes, int64_t opset,
                          UnsupportedOps& missing);

}  // namespace halfnote
