#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Attention and AttentionGrad read K and V that were repeated for groups of heads as they were
/// before.
bool group_heads(Graph& graph, PassContext& context);

}  // namespace halfnote
