// Comparing values as ONNX's runner does: numpy's assert_allclose for floats; everything else must
// be equal.
#pragma once

#include <string>

#include "base/datum.h"

namespace halfnote::cases {

struct Tolerance {
  double relative = 1e-3, absolute = 1e-7;
};

/// What differs, with the worst element; an empty string where nothing does. NaN equals NaN.
std::string compare(const Datum& got, const Datum& want, const Tolerance& tolerance);

}  // namespace halfnote::cases
