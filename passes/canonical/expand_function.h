// Replaces a node by the function body that ONNX's schema gives for its op.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Expands the node in place; false, and nothing happens, if its op has no body in this op-set for
/// these types. The results keep their names; the new nodes have no types yet.
bool expand_function(Graph& graph, NodeId node, int64_t opset);

}  // namespace halfnote
