// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Moves a Relu behind the MaxPool that alone reads it, and their gradients likewise;
/// pool_before_relu.cc says which.
bool pool_before_relu(Model& model, PassContext& context);

}  // namespace halfnote
