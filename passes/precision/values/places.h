// Floats that say where something is, or how much of it there is.
#pragma once

#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// The operands of a node that hold coordinates or counts as floats: those of its operator row
/// (OperatorRow::place_inputs), those that a lowered node reads in their stead, and what is cast to
/// integers. A rounded place is another place.
std::vector<ValueId> places_of(const Graph& graph, NodeId node);

}  // namespace halfnote
