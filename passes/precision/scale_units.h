// Units of the loss scale: every value of a step carries S to some power, and the ops say how
// powers combine.
#pragma once

#include "base/error.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// Sets Value::scale_power of all results from that of the inputs and initializers, by the
/// ScaleRule of each op. Throws an Error of that code (kModel: what the graph says of itself comes
/// from outside) where the powers do not fit: a sum of scaled and
/// plain gradients, a scaled value in a nonlinear op (clip before unscale), an optimizer or state
/// that would take a scaled or doubly unscaled gradient, a scaled output. Returns whether any power
/// was another before.
bool check_scale_units(Graph& graph, ErrorCode code = ErrorCode::kInternal);

}  // namespace halfnote
