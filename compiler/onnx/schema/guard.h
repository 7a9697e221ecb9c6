// What ONNX's own inference functions cannot bear, refused before they see it.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote::proto {

/// Throws Error(kModel) for a node that ONNX's inference would not come back from.
void guard_inference(const Node& node);

}  // namespace halfnote::proto
