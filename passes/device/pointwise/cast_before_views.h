// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Moves casts in front of reshapes, to the elementwise nodes before these;
/// cast_before_views.cc says which.
bool cast_before_views(Graph& graph, PassContext& context);

}  // namespace halfnote
