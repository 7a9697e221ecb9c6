// Names of nodes: other tools, reports and `--why` need one for each node, and each only once.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Gives nodes without a name that of their first result, and later nodes of a name that is taken
/// `NAME_1`, `NAME_2`, …. Says whether a name changed.
bool make_node_names_unique(Graph& graph);

}  // namespace halfnote
