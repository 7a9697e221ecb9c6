// Which results have a size, or a structure, that only the data of a step tell.
#pragma once

#include <functional>
#include <span>

#include "compiler/ir/graph.h"
#include "passes/unsupported.h"

namespace halfnote {

/// The reason where a selection by values has no fixed size.
inline constexpr const char* kSizedByValues = "the values decide how many elements it gives";

/// Notes every node before these ends, in bodies too, that no step can be planned with: the size of
/// a result follows from data, not from constants and shapes (which are numbers once the dims are
/// bound); branches among which data choose give different shapes; how often a body runs, or what a
/// container holds, is open.
/// Leaves out nodes for which `judged` does not hold.
void add_sizes_of_data(const Graph& graph, std::span<const ValueId> ends,
                       const std::function<bool(NodeId)>& judged, UnsupportedOps& problems);

/// Has the node bodies or containers, which may be known well enough to become plain nodes?
bool may_be_flattened(const Graph& graph, NodeId node);

}  // namespace halfnote
