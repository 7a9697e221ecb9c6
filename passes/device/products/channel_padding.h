// Channels that pad-to-8 has padded, for passes that have a better use for few of them.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// The value before its channels (dim 1 of (N, C, spatial…)) were padded, or itself.
ValueId without_channel_padding(const Graph& graph, ValueId value);

/// The Slice that cuts the padding off a gradient and is its only reader; invalid if there is none,
/// or if something else than `shape` is left.
NodeId padding_cut(const Graph& graph, ValueId gradient, const Shape& shape);

}  // namespace halfnote
