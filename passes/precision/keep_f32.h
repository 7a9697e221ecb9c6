// What assign_precision writes where nothing is to be decided: --precision fp32.
#pragma once

#include "compiler/ir/graph.h"
#include "passes/precision/rules.h"

namespace halfnote {

/// Gives each node its reason: all is f32, or the model's own. Rules must name something all the
/// same. Says whether a reason is new.
bool keep_f32(Graph& graph, PrecisionRules& rules);

}  // namespace halfnote
