// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// States what the activations of the graph may take at once, for the pass; 0: no limit.
void limit_activations(Model& model, int64_t bytes);

/// Computes activations again where the backward pass reads them, until the limit is kept;
/// rematerialize.cc says how. Without a limit it does nothing.
bool rematerialize(Model& model, PassContext& context);

}  // namespace halfnote
