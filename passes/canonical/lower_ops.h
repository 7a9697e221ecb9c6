// Ops that are written in other ops before anything looks at them: used by the pass and by tests.
#pragma once

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// Replaces every node whose operator row has a lowering, in all regions, by what the rule makes;
/// ops that a rule makes are lowered too. Results keep their names. Says whether anything changed.
/// Throws Error(kUnsupported) where a rule needs a rank or size that is unknown.
bool lower_graph(Graph& graph, const InferNode& infer);

}  // namespace halfnote
