// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "base/ops/pointwise.h"
#include "passes/pass.h"

namespace halfnote {

/// Makes chains of elementwise nodes one node; fuse_pointwise.cc says how.
bool fuse_pointwise(Graph& graph, PassContext& context);

/// For GPUs: what is left alone and large becomes a program, too.
bool program_large(Graph& graph, PassContext& context);

/// The row of a node that a pointwise program can hold: types and shapes known and fit. Else null.
const PointwiseRow* pointwise_row_of(const Graph& graph, NodeId node);

/// Nodes that are further apart are not made one.
inline constexpr int64_t kPointwiseWindow = 64;

}  // namespace halfnote
