// What the passes share that have a better use for the few channels of an image than to pad them.
#pragma once

#include <functional>
#include <string_view>

#include "compiler/ir/graph.h"
#include "passes/pass.h"

namespace halfnote {

/// The value before its channels (dim 1 of (N, C, spatial…)) were padded, or itself.
ValueId without_channel_padding(const Graph& graph, ValueId value);

/// The Slice that cuts the padding off a gradient and is its only reader; invalid if there is none,
/// or if something else than `shape` is left.
NodeId padding_cut(const Graph& graph, ValueId gradient, const Shape& shape);

/// Offers every Conv to `forward` and every ConvGradWeight to `gradient`, in order; notes `words`
/// of those that these have rewritten, and says whether there were any.
bool rewrite_convolutions(Graph& graph, PassContext& context, std::string_view words,
                          const std::function<bool(NodeId)>& forward,
                          const std::function<bool(NodeId)>& gradient);

}  // namespace halfnote
