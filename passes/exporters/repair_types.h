// The marks of the pass repair-types.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Is the node a Cast that repair-types put between types that did not fit? It is no rounding that
/// the model asks for.
bool is_repair(const Node& node);

}  // namespace halfnote
