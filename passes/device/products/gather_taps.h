// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Convolutions of images with few channels take taps of their windows as channels; gather_taps.cc
/// says which.
bool gather_taps(Graph& graph, PassContext& context);

}  // namespace halfnote
