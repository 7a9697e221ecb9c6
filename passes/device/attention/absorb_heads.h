// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Takes the transposes of heads into Attention and AttentionGrad; absorb_heads.cc says which.
bool absorb_heads(Graph& graph, PassContext& context);

}  // namespace halfnote
