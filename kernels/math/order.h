// The order of elements that ArgMax, ArgMin and TopK pick by, written once for the CPU and for
// CUDA.
#pragma once

#include "kernels/math/host_device.h"

namespace halfnote::math {

/// A strict order of elements with their indices: no two are equal.
struct Order {
  bool largest = true;      // comes first, or the smallest
  bool nan_first = true;    // before all numbers, or behind them
  bool last_index = false;  // of equal elements the last comes first

  /// Does x[i] = a come before x[j] = b?
  template <class M>
  HN_HD bool before(M a, int64_t i, M b, int64_t j) const {
    const bool a_is_nan = a != a, b_is_nan = b != b;
    if (a_is_nan != b_is_nan) return a_is_nan == nan_first;
    if (a_is_nan || a == b) return last_index ? i > j : i < j;
    return largest ? a > b : a < b;
  }
};

}  // namespace halfnote::math
