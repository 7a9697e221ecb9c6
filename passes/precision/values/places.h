// Floats that say where something is, or how much of it there is.
#pragma once

#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// The operands of a node that hold coordinates or counts as floats: those of its operator row
/// (OperatorRow::place_inputs), and those that a lowered node reads in their stead. A rounded place
/// is another place.
std::vector<ValueId> places_of(const Graph& graph, NodeId node);

/// Does the node make integers of floats? They are indices, or counts.
bool makes_indices(const Graph& graph, NodeId node);

/// Is the result of a node read, forwards, only element by element or to be moved, and computed so?
/// Indices are made of such values. What a normalization or a product reads is data, though indices
/// may be made of it, too.
bool is_read_by_element(const Graph& graph, NodeId node);

}  // namespace halfnote
