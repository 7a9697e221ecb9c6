// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Moves nodes down to the first that reads them where so less is held; compute_late.cc says how.
bool compute_late(Graph& graph, PassContext& context);

}  // namespace halfnote
