// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Looks for infinities and NaN in each large gradient while it is in the cache; check_early.cc
/// says how.
bool check_early(Graph& graph, PassContext& context);

}  // namespace halfnote
