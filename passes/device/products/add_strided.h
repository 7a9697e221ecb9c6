// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Adds the gradient of a convolution of single elements with a stride to another one only where it
/// is not 0; add_strided.cc says when.
bool add_strided(Graph& graph, PassContext& context);

}  // namespace halfnote
