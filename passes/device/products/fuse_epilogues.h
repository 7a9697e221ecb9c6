// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets matrix products on a GPU do what elementwise nodes, sums and accumulation do around them,
/// where the context's `pays` says so; fuse_epilogues.cc says how.
bool fuse_epilogues(Graph& graph, PassContext& context);

}  // namespace halfnote
