// How a pooled element says where its maximum is: the number of the tap, the element of its window
// in the order of rows, in a byte.
#pragma once

#include <cstdint>

namespace halfnote {

/// Nothing is taken: padding alone, or what a ReLU behind it makes 0. Windows have at most so many
/// taps.
inline constexpr uint8_t kNoTap = 255;

}  // namespace halfnote
