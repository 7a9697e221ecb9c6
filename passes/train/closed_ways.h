// Where no weight has a gradient: every node on a way from a weight to the loss that lets none
// through, behind others of its kind too.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"
#include "passes/unsupported.h"

namespace halfnote {

/// Why a node with a gradient rule lets no gradient through.
std::string why_stopped(const Graph& graph, NodeId node);

/// Nothing if a gradient comes from one of `ends` to one of `sources`; else all nodes between them
/// that give an operand none, and all that lack one. A node whose gradient is not known, or refused
/// (`judged` does not hold, types are open, the op is unknown), is no obstacle: another will stand
/// there. Asks the rules, which write into the graph.
UnsupportedOps find_closed_ways(Graph& graph, std::span<const ValueId> sources,
                                std::span<const ValueId> ends, const InferNode& infer,
                                const std::function<bool(NodeId)>& judged);

}  // namespace halfnote
