// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// A BatchNormalization in front of a MaxPool goes behind it, with the gradients of both;
/// pool_before_norm.cc says which.
bool pool_before_norm(Graph& graph, PassContext& context);

}  // namespace halfnote
