// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets a scatter add to another sum instead of to zeros; absorb_scatters.cc says how.
bool absorb_scatters(Graph& graph, PassContext& context);

}  // namespace halfnote
