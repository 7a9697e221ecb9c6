// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Makes softmax cross-entropy and its gradient one node; fuse_cross_entropy.cc says how.
bool fuse_cross_entropy(Graph& graph, PassContext& context);

}  // namespace halfnote
