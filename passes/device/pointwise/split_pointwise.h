// What rematerialize does with the chains that fuse_pointwise made.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Makes the pointwise nodes of the forward pass that have several results one node a result, where
/// an early result needs fewer operands than the last; split_pointwise.cc says how. Returns whether
/// there were any.
bool split_pointwise(Graph& graph);

}  // namespace halfnote
