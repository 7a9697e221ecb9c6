// InstanceNormalization in 16 bits. ONNX has no form of it whose statistics are f32, but
// GroupNormalization with a group for each channel is the same, and has one.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Is it an InstanceNormalization of (N, C, D1, …) whose C is known?
bool has_group_form(const Graph& graph, NodeId node);

/// Makes it that GroupNormalization.
void take_group_form(Graph& graph, NodeId node);

}  // namespace halfnote
