// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets a MaxPool note where its maxima are, for its gradient, and takes the Relu behind it into
/// it; keep_taps.cc says which.
bool keep_taps(Graph& graph, PassContext& context);

}  // namespace halfnote
