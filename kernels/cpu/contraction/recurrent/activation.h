// The activation functions of recurrent ops and their slopes, on vectors in math precision.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ops/recurrence.h"

namespace halfnote::cpu {

/// y = f(x cut to [−clip, clip]); y may be x.
template <class M>
void activate(const Activation& f, const std::optional<float>& clip, const M* x, int64_t n, M* y);

/// slope = df/dx at x, where y = activate(x); 0 where x was cut. slope may be y.
template <class M>
void activation_slope(const Activation& f, const std::optional<float>& clip, const M* x, const M* y,
                      int64_t n, M* slope);

}  // namespace halfnote::cpu
