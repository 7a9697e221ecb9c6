// Joining what is declared about a type with what was inferred.
#pragma once

#include <string>

#include "base/type.h"

namespace halfnote::proto {

/// What both say together: numbers win over symbols, a declared symbol over an inferred one. Throws
/// Error(kModel) that names `value` where they contradict each other.
ValueType merge_types(const ValueType& declared, const ValueType& inferred,
                      const std::string& value);

}  // namespace halfnote::proto
