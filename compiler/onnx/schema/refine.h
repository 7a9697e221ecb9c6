// What follows from a node's types beyond what the schema's inference function says.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote::proto {

/// Reshape with -1 on symbolic dims: the open dim is the one dim, or number, by which the sizes
/// differ.
void refine_reshape(Graph& graph, NodeId node);

/// Throws Error(kUnsupported) for a ConvTranspose whose `output_shape` is smaller than its input:
/// ONNX's inference gives its result no spatial dims, and its checker refuses those that it has.
void refuse_small_output(const Graph& graph, NodeId node);

}  // namespace halfnote::proto
