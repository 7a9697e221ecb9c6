// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets chains of elementwise nodes sum what they make over its first dims; absorb_sums.cc says
/// how.
bool absorb_sums(Graph& graph, PassContext& context);

}  // namespace halfnote
