// Takes nodes out of a graph that only hand their operand on.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Is the value a result of the graph, or of a body in it?
bool is_region_output(const Graph& graph, ValueId value);

/// Gives the uses of the node's result to its first operand, of the same type, and removes the
/// node. The result of a region keeps its name; where the operand cannot bear it (an input, an
/// initializer, a value captured from outside, another result) the node stays, as Identity.
void pass_through(Graph& graph, NodeId node);

}  // namespace halfnote
