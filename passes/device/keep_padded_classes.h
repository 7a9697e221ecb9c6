#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Gives a cross-entropy and its gradient the padded classes; keep_padded_classes.cc says how.
bool keep_padded_classes(Graph& graph, PassContext& context);

}  // namespace halfnote
