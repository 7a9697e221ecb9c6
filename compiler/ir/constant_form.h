// The eight spellings of a Constant node's value, brought to one.
#pragma once

#include "base/attribute.h"

namespace halfnote {

/// Replaces `value_float`, `value_ints`, `sparse_value`, … by a tensor attribute `value`. Throws
/// Error(kModel) unless exactly one of them stands there. References to a function's attribute stay
/// as they are.
void normalize_constant(Attributes& attributes);

}  // namespace halfnote
