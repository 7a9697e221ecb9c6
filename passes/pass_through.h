// Takes nodes out of a graph that only hand their operand on.
#pragma once

#include <functional>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// Is the value a result of the graph, or of a body in it?
bool is_region_output(const Graph& graph, ValueId value);

/// Gives the uses of the node's result to its first operand, of the same type, and removes the
/// node. The result of a region keeps its name; where the operand cannot bear it (an input, an
/// initializer, a value captured from outside, another result) the node stays, as Identity.
void pass_through(Graph& graph, NodeId node);

/// Puts what `build` makes in the place of a node with one result: the nodes made take over its
/// role, origin and precision, and their result its uses, and its name where a region's result has
/// it.
void expand_into(Graph& graph, NodeId node, const InferNode& infer,
                 const std::function<Expr(Builder&)>& build);

}  // namespace halfnote
