// A graph for Graphviz: nodes coloured by the type they compute in, edges labelled with type and
// shape, casts as small ellipses, subgraphs as clusters.
#pragma once

#include <string>

#include "compiler/ir/graph.h"

namespace halfnote::cli {

/// Initializers are left out: a weight would be one more node at every operator.
std::string graph_dot(const Graph& graph, const std::string& title);

}  // namespace halfnote::cli
