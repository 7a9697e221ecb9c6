// Takes the padding of pad_to_8 out again.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Metadata key of the nodes that pad_to_8 made: each can be replaced by its first operand, all of
/// them together.
inline constexpr const char* kPaddingMark = "halfnote.padding";

bool is_padding(const Node& node);

/// Removes all marked nodes of a graph; the caller infers types afterwards. Returns how many.
int remove_padding(Graph& graph);

}  // namespace halfnote
