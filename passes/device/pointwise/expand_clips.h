// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Clip and its gradient become the comparisons they consist of; expand_clips.cc says how.
bool expand_clips(Graph& graph, PassContext& context);

}  // namespace halfnote
