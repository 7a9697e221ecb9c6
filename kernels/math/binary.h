// The formulas of ops with two operands of one type, written once for the CPU and for CUDA. T is
// float, double, an integer or bool; integers wrap around and never trap.
#pragma once

#include "kernels/math/host_device.h"

#ifndef __CUDACC_RTC__
#include <limits>
#include <type_traits>
#endif

namespace halfnote::math {

/// Integer arithmetic modulo 2^bits: done unsigned and wide enough not to be promoted to a signed
/// int.
template <class T>
using Wrapping = std::conditional_t<(sizeof(T) < 8), uint32_t, uint64_t>;

/// Of unsigned types nothing is.
template <class T>
HN_HD bool is_negative(T x) {
  if constexpr (std::is_integral_v<T> && !std::is_signed_v<T>) {
    return false;
  } else {
    return x < 0;
  }
}

struct Add {
  template <class T>
  HN_HD static T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};

struct Sub {
  template <class T>
  HN_HD static T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
    } else {
      return a - b;
    }
  }
};

struct Mul {
  template <class T>
  HN_HD static T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      // T may be 16 bits wide, whose product in a signed int would overflow: hence the unsigned
      // type.
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};

/// Integers truncate toward zero. The caller has excluded b = 0 for integers.
struct Div {
  template <class T>
  HN_HD static T value(T a, T b) {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      if (b == -1) return Sub::value(T(0), a);  // the lowest number has no negative
    }
    return static_cast<T>(a / b);
  }
};

/// Sign of the divisor, as Python's %; integers only. The caller has excluded b = 0.
struct Mod {
  template <class T>
  HN_HD static T value(T a, T b) {
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
      const T rest = static_cast<T>(a % b);
      return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
    } else {
      return static_cast<T>(a % b);
    }
  }
};

/// Sign of the dividend, as C's fmod and %. The caller has excluded b = 0 for integers.
struct Fmod {
  template <class T>
  HN_HD static T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return 0;
      }
      return static_cast<T>(a % b);
    } else {
      return fmod(a, b);
    }
  }
};

/// Integers wrap; a negative exponent gives the truncated value (1, -1 or 0; 0 for a base of 0).
struct Pow {
  template <class T>
  HN_HD static T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return integer(a, b);
    } else {
      // Squares and cubes (of GELU) without the logarithm.
      return b == 2 ? a * a : b == 3 ? a * a * a : pow(a, b);
    }
  }
  template <class T, class E>
  HN_HD static T integer(T a, E b) {
    if constexpr (std::is_signed_v<E>) {
      if (b < 0) {
        if (a == 1) return 1;
        if constexpr (std::is_signed_v<T>) {
          if (a == -1) return b % 2 == 0 ? 1 : -1;
        }
        return 0;
      }
    }
    T result = 1;
    for (uint64_t rest = static_cast<uint64_t>(b); rest != 0; rest >>= 1) {
      if (rest & 1) result = Mul::value(result, a);
      a = Mul::value(a, a);
    }
    return result;
  }
};

/// NaN wins, as in NumPy.
struct Min {
  template <class T>
  HN_HD static T value(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

struct Max {
  template <class T>
  HN_HD static T value(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct PRelu {
  template <class T>
  HN_HD static T value(T x, T slope) {
    return is_negative(x) ? Mul::value(slope, x) : x;
  }
};

struct BitAnd {
  template <class T>
  HN_HD static T value(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <class T>
  HN_HD static T value(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <class T>
  HN_HD static T value(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

/// Shifts by the width or more give 0. Unsigned only.
struct ShiftLeft {
  template <class T>
  HN_HD static T value(T a, T b) {
    return b >= sizeof(T) * 8 ? T(0) : static_cast<T>(static_cast<uint64_t>(a) << b);
  }
};

struct ShiftRight {
  template <class T>
  HN_HD static T value(T a, T b) {
    return b >= sizeof(T) * 8 ? T(0) : static_cast<T>(a >> b);
  }
};

struct Equal {
  template <class T>
  HN_HD static bool value(T a, T b) {
    return a == b;
  }
};

struct Less {
  template <class T>
  HN_HD static bool value(T a, T b) {
    return a < b;
  }
};

struct LessOrEqual {
  template <class T>
  HN_HD static bool value(T a, T b) {
    return a <= b;
  }
};

struct Greater {
  template <class T>
  HN_HD static bool value(T a, T b) {
    return a > b;
  }
};

struct GreaterOrEqual {
  template <class T>
  HN_HD static bool value(T a, T b) {
    return a >= b;
  }
};

}  // namespace halfnote::math
