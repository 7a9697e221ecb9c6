// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Rounds gradients of convolutions' weights to 16 bits; round_conv_gradients.cc says why.
bool round_conv_gradients(Graph& graph, PassContext& context);

}  // namespace halfnote
