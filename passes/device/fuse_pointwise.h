// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Makes chains of elementwise nodes one node; fuse_pointwise.cc says how.
bool fuse_pointwise(Graph& graph, PassContext& context);

}  // namespace halfnote
