// Conversion between any two numeric types, without undefined behaviour: floats round to nearest
// even, float to integer truncates and saturates (NaN gives 0), integers wrap, anything but 0 is
// true.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/float16.h"
#include "kernels/math/host_device.h"

namespace halfnote::math {

template <class T>
inline constexpr bool is_16bit = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// Integers above 2^53 do not fit a double; a sticky last bit keeps them on the right side of every
/// tie of 16 bits.
template <class I>
HN_HD double to_double_for_rounding(I value) {
  if constexpr (sizeof(I) < 8) {
    return static_cast<double>(value);
  } else {
    const bool negative = std::is_signed_v<I> && static_cast<int64_t>(value) < 0;
    const uint64_t bits = static_cast<uint64_t>(value);
    uint64_t magnitude = negative ? uint64_t{0} - bits : bits;
    if (magnitude >> 53) {
      magnitude = (magnitude & ~uint64_t{0xfff}) | (magnitude & 0xfff ? 0x800u : 0u);
    }
    return negative ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
  }
}

template <class To, class From>
HN_HD To truncate_saturating(From value) {
  if (value != value) return 0;
  // Both bounds are exact in float: -2^k or 0, and 2^k, one above the largest To.
  constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
  constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * 2;
  if (value <= kLow) return std::numeric_limits<To>::min();
  if (value >= kHigh) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

template <class To, class From>
To convert_element(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_16bit<From>) {
    return convert_element<To>(to_f32(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (is_16bit<To>) {
    if constexpr (std::is_same_v<From, bool>) {
      return convert_element<To>(value ? 1.0f : 0.0f);
    } else if constexpr (std::is_integral_v<From>) {
      return convert_element<To>(to_double_for_rounding(value));
    } else if constexpr (std::is_same_v<To, Half>) {
      return to_f16(value);
    } else {
      return to_bf16(value);
    }
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return truncate_saturating<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace halfnote::math
