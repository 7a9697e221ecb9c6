// The inner loops of our own fast kernels, on f32 in the first-level cache, compiled for the
// baseline and for AVX-512. Both give the same bits: the order of every sum is fixed by the source,
// in 64 interleaved partial sums.
#pragma once

#include <cstdint>

namespace halfnote::cpu::fast {

/// Elements that the kernels convert and process at a time.
inline constexpr int64_t kPiece = 2048;

/// Elements that the line_ loops may touch past the end.
inline constexpr int64_t kOverrun = 16;

/// A tile of a product with sums in f64: kTallTile rows by kWideTile columns; and the columns of
/// the block that it stands in.
inline constexpr int64_t kTallTile = 8, kWideTile = 16, kWideColumns = 64;

struct VectorMath {
  const char* name;

  /// Mean of x and sum of squared distances from it; n > 0.
  void (*moments)(const float* x, int64_t n, double* mean, double* squares);
  /// y = (x − mean)·factor + shift
  void (*normalize)(const float* x, int64_t n, float mean, float factor, float shift, float* y);
  /// The same, rounded once. For f32 results: a ReLU behind it should not see the rounding of ours.
  void (*normalize_exactly)(const float* x, int64_t n, double mean, double factor, double shift,
                            float* y);
  /// Adds Σ dy and Σ dy·(x − mean).
  void (*gradient_sums)(const float* dy, const float* x, int64_t n, float mean, double* sum,
                        double* product);
  /// dx = factor·(dy − offset − (x − mean)·slope)
  void (*normalize_gradient)(const float* dy, const float* x, int64_t n, float mean, float factor,
                             float offset, float slope, float* dx);

  /// The sums of gradient_sums() for each of `runs` runs of `length` elements.
  void (*run_sums)(const float* dy, const float* x, int64_t runs, int64_t length, float mean,
                   double* sums, double* products);
  /// dx = factor·(dy·scale − offset − (x − mean)·slope)
  void (*scaled_gradient)(const float* dy, const float* x, int64_t n, float scale, float mean,
                          float factor, float offset, float slope, float* dx);

  /// y = (x − mean)·factor·scale + bias, elementwise scale and bias (may be null), rounded once.
  void (*normalize_line)(const float* x, int64_t n, double mean, double factor, const float* scale,
                         const float* bias, float* y);
  /// The same in f32 but for the mean, for results of 16 bits; y may be x.
  void (*scale_line)(const float* x, int64_t n, double mean, float factor, const float* scale,
                     const float* bias, float* y);
  /// y = a·b
  void (*multiply)(const float* a, const float* b, int64_t n, float* y);
  /// Adds dy·(x − mean)·factor to d_scale and dy to d_bias, elementwise.
  void (*add_line_gradient)(const float* dy, const float* x, int64_t n, float mean, float factor,
                            float* d_scale, float* d_bias);

  /// The maximum of each pair x[2i], x[2i+1]: the first of equals, the first NaN.
  void (*pair_maximum)(const float* x, int64_t n, float* y);
  /// y[r] = the maximum of the lines x[2r] and x[2r + 1], elementwise, likewise; a line has
  /// `columns` elements. Reads and writes up to kOverrun elements past the last line.
  void (*line_maximum)(const float* x, int64_t rows, int64_t columns, float* y);
  /// Each element of g[r] goes to where line_maximum() found the maximum, 0 to the other line.
  /// Overruns likewise.
  void (*line_maximum_gradient)(const float* x, const float* g, int64_t rows, int64_t columns,
                                float* dx);
  /// g[i] goes to the maximum of x[2i], x[2i+1]; dx likewise interleaved.
  void (*pair_maximum_gradient)(const float* x, const float* g, int64_t n, float* dx);
  /// y = 1/(1 + exp(−x)) and y = tanh(x), to about two spacings; y may be x.
  void (*sigmoid)(const float* x, int64_t n, float* y);
  void (*tanh)(const float* x, int64_t n, float* y);

  /// Adds a·b to a tile of sums, summed over k in order: a is (k, kTallTile); b is (k, kWideTile)
  /// and the sums are (kTallTile, kWideTile), both with lines kWideColumns apart.
  void (*wide_tile)(const double* a, const double* b, int64_t k, double* sums);
};

/// The loops for this CPU.
const VectorMath& vector_math();

extern const VectorMath kBaselineMath;
/// Only on x86-64.
extern const VectorMath kAvx512Math;

}  // namespace halfnote::cpu::fast
