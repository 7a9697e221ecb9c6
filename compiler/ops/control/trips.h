// How often a body may run.
#pragma once

#include <cstdint>

namespace halfnote {

/// More trips are not planned; exporters write the largest integer for "without a bound".
inline constexpr int64_t kMaxTrips = 1 << 20;

}  // namespace halfnote
