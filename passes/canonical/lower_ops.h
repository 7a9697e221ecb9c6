// Ops that are written in other ops: before anything looks at them (the pass, and tests), or
// because their derivative is asked for.
#pragma once

#include <span>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"
#include "passes/unsupported.h"

namespace halfnote {

/// Replaces every node whose operator row has a lowering, in all regions, by what the rule makes;
/// ops that a rule makes are lowered too. Results keep their names. Says whether anything changed.
/// Throws Error(kUnsupported) where a rule needs a rank or size that is unknown.
bool lower_graph(Graph& graph, const InferNode& infer);
/// The same, but notes where a rule refuses, and leaves these nodes as they are.
bool lower_graph(Graph& graph, const InferNode& infer, UnsupportedOps& refused);

/// Replaces those of the nodes that have no gradient rule but a body (gradient ops of ours) by the
/// body, whose standard ops have one: what a second derivative needs. Results keep their names.
void write_out_bodies(Graph& graph, const InferNode& infer, std::span<const NodeId> nodes);

}  // namespace halfnote
