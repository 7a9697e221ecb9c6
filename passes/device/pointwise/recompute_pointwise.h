// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets the backward pass compute elementwise results again instead of reading them;
/// recompute_pointwise.cc says when.
bool recompute_pointwise(Graph& graph, PassContext& context);

}  // namespace halfnote
