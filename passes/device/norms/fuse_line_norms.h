// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Takes the sum before a LayerNormalization or RMSNormalization into it, and the sums before and
/// behind its gradient; fuse_line_norms.cc says how.
bool fuse_line_norms(Graph& graph, PassContext& context);

}  // namespace halfnote
