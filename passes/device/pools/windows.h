// What the passes over pools ask of their windows.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Has each window of a pool an element of the operand? Kernels are longer than the padding beside
/// them then.
bool has_no_empty_window(const Graph& graph, NodeId pool);

}  // namespace halfnote
