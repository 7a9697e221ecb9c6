// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets optimizer nodes and the global norm scale and widen gradients themselves, and the norm say
/// whether they are finite; fold_factors.cc says how.
bool fold_factors(Graph& graph, PassContext& context);

}  // namespace halfnote
