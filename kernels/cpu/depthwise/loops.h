// The inner loops of depthwise convolutions, on lines of 16 channels of f32: one pixel of a block
// of channels each. Channels do not mix, so a line is a vector, and a tap of the kernel is a
// multiply-add of two lines. Every sum goes over taps or pixels in an order that the call alone
// decides.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfnote::cpu::depthwise {

inline constexpr int64_t kLanes = 16;

/// A tap of a kernel: where it finds its line of x, from the line of the first output's base on,
/// and its line of the weights, both in floats.
struct Tap {
  int64_t x = 0, w = 0;
};

/// What add_products() sums: the gradients of a kernel of `kernel_rows` × `kernel_columns` lines
/// from `rows` × `columns` lines of dY. All steps are in floats.
struct Products {
  const float* dy = nullptr;
  const float* x = nullptr;  // what the first line of dY meets at the first tap
  int64_t rows = 0, columns = 0;
  int64_t dy_row = 0;                             // from row to row of dY
  int64_t x_row = 0, x_column = 0;                // in x, from output to output
  int64_t kernel_rows = 0, kernel_columns = 0;    //
  int64_t x_kernel_row = 0, x_kernel_column = 0;  // in x, from tap to tap
  int64_t sums_row = 0;                           // in the sums; columns are a line apart
};

struct Loops {
  const char* name;
  /// y[o] = start + Σ over taps of x[o·x_step + tap.x]·w[tap.w], for `outputs` lines y_step apart.
  void (*sum_taps)(const float* x, int64_t x_step, const float* w, const Tap* taps, size_t count,
                   const float* start, float* y, int64_t y_step, int64_t outputs);
  /// Adds to the lines of `sums`.
  void (*add_products)(const Products& products, float* sums);
  /// Elements [at, at + count) of 16 planes to `count` lines, and of `lanes` planes back.
  void (*to_lines)(const float* const* planes, int64_t at, int64_t count, float* lines);
  void (*to_planes)(const float* lines, int64_t count, float* const* planes, int64_t at,
                    int64_t lanes);
};

/// The loops for this CPU; null where it has neither AVX-512 nor AVX2 with FMA.
const Loops* loops();

/// Only on x86-64.
extern const Loops kAvx2Loops, kAvx512Loops;

}  // namespace halfnote::cpu::depthwise
