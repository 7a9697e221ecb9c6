// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Convolutions that cut an image into patches become matrix products; multiply_patches.cc says
/// which.
bool multiply_patches(Graph& graph, PassContext& context);

}  // namespace halfnote
