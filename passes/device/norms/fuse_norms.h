// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Takes Add and Relu into BatchNormalization, and their gradients into its gradient; fuse_norms.cc
/// says how.
bool fuse_norms(Graph& graph, PassContext& context);

}  // namespace halfnote
