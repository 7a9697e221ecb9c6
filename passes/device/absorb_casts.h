// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets sums read 16-bit operands without a cast; absorb_casts.cc says how.
bool absorb_casts(Graph& graph, PassContext& context);

}  // namespace halfnote
