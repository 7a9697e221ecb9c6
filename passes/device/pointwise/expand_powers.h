// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Squares and cubes become products; expand_powers.cc says how.
bool expand_powers(Graph& graph, PassContext& context);

}  // namespace halfnote
