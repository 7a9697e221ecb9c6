// A few nodes of a graph as a graph of their own, to be measured.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// The nodes, which stand in the main region, with what they read as inputs (constants that are
/// known as initializers) and what others read of them as outputs. `inputs` and `outputs`, if not
/// empty, are the names and the order that these get; an input that no node reads is there all the
/// same, typed as in `graph`.
Graph piece_of(const Graph& graph, const std::vector<NodeId>& nodes,
               const std::vector<std::string>& inputs = {},
               const std::vector<std::string>& outputs = {});

/// Names of values.
std::vector<std::string> names_of(const Graph& graph, std::span<const ValueId> values);

}  // namespace halfnote
