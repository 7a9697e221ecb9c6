// What follows from a node's types beyond what the schema's inference function says.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote::proto {

/// Reshape with -1 on symbolic dims: the open dim is the one dim, or number, by which the sizes
/// differ.
void refine_reshape(Graph& graph, NodeId node);

}  // namespace halfnote::proto
