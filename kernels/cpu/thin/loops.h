// The inner loop of convolutions with few result channels: lanes are neighbouring columns, and a
// column of every result stays in registers while all taps go by.
#pragma once

#include <cstdint>

namespace halfnote::cpu::thin {

/// Result channels at most, and columns of a vector. With up to 8 oneDNN would be passed too (32 ->
/// 6 channels: 23 / 44), but its order of sums keeps the elements of a narrow ResNet nearer to f64,
/// on the right side of every ReLU.
inline constexpr int64_t kMostResults = 4, kLanes = 16;

/// A tap of the kernel in one source channel: where its first column of x and its weights for all
/// results lie, in floats.
struct Tap {
  int32_t x = 0, w = 0;
};

struct Loops {
  const char* name;
  /// y[r][i] = start[r] + Σ over taps of w[tap.w + r]·x[tap.x + i] for `results` rows y_row apart
  /// of `vectors` · kLanes columns, in the order of the taps.
  void (*sum_taps)(const float* x, const Tap* taps, int64_t count, const float* w, int64_t results,
                   const float* start, int64_t vectors, float* y, int64_t y_row);
};

/// The loops for this CPU; null where it has neither AVX-512 nor AVX2 with FMA.
const Loops* loops();

/// Only on x86-64.
extern const Loops kAvx2Loops, kAvx512Loops;

}  // namespace halfnote::cpu::thin
