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

/// The same, but for those that tensor cores gain by: of products of 16-bit matrices whose rows in
/// memory would not begin at 16 bytes, and of channels of convolutions. What stays is rows of other
/// sizes, whose number they do not mind; and products of two stacks of matrices (attention), where
/// the copies cost as much as they spare; and what meets a size that is not known. `padded` is the
/// graph with its types inferred and its sizes folded as far as they can be, `plain` the same
/// without any padding; both have its values.
int remove_useless_padding(Graph& graph, const Graph& padded, const Graph& plain);

}  // namespace halfnote
