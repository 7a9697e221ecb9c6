// Folding of one node: used by the pass and by those that make nodes from constants as they go.
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Infers the node and, where all it reads is constant, computes it: its results become
/// initializers of their names and the node goes. Says whether it did.
bool fold_node(Graph& graph, NodeId node, PassContext& context);

}  // namespace halfnote
