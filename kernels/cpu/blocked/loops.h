// The inner loops over tensors in channel blocks: lines of 16 channels of one pixel, an AVX-512
// vector of f32 each. Whatever is summed over pixels is summed lane by lane, in the order of the
// pixels.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/layout.h"

namespace halfnote::cpu::blocked {

/// Lines that the loops over statistics take at a time: 8 KiB of f32.
inline constexpr int64_t kLines = 128;

/// Moments of 16 channels, merged line by line of pieces (Chan's formula).
struct Moments16 {
  double count = 0;
  double mean[kBlockChannels] = {};
  double squares[kBlockChannels] = {};  // sum of squared distances from the mean

  void merge(const Moments16& other);
};

/// What y = (x − mean)·factor + shift takes for each of 16 channels.
struct Scale16 {
  double mean[kBlockChannels], factor[kBlockChannels], shift[kBlockChannels];
};

/// What dx = factor·(dy − offset − (x − mean)·slope) takes.
struct Gradient16 {
  float mean[kBlockChannels], factor[kBlockChannels], offset[kBlockChannels], slope[kBlockChannels];
};

/// The windows of a pool: those of output pixel i are pixels[starts[i]] to pixels[starts[i + 1] -
/// 1] of the larger plane.
struct Windows {
  const int32_t* pixels = nullptr;
  const int32_t* starts = nullptr;
  int64_t count = 0;  // output pixels
  int64_t taps = 0;   // of every window; 0 if they differ
};

/// Tensors are arrays of T, the type that the loops were asked for.
struct Loops {
  /// Takes `lines` lines of x into `moments`.
  void (*moments)(const void* x, int64_t lines, Moments16& moments);
  /// For f32 in f64, rounded once; for 16-bit types in f32.
  void (*normalize)(const void* x, int64_t lines, const Scale16& scale, void* y);
  /// Adds Σ dy and Σ dy·(x − mean), channel by channel.
  void (*gradient_sums)(const void* dy, const void* x, int64_t lines, const float* mean,
                        double* sum, double* product);
  void (*normalize_gradient)(const void* dy, const void* x, int64_t lines, const Gradient16& by,
                             void* dx);
  /// Adds the lines to 16 sums in f64.
  void (*add_lines)(const void* x, int64_t lines, double* sums);
  /// A pooled plane. The maximum of a lane: the first of equals, the first NaN; −∞ without taps.
  void (*maximum)(const void* x, const Windows& windows, void* y);
  /// Adds the lines of dy to where maximum() found each lane's, in the f32 plane dx.
  void (*maximum_gradient)(const void* dy, const void* x, const Windows& windows, float* dx);
  /// The same for windows that share no pixel: all their lines of dx, which has type T, are
  /// written.
  void (*maximum_gradient_apart)(const void* dy, const void* x, const Windows& windows, void* dx);
  /// The f32 plane dx in T.
  void (*store)(const float* from, int64_t lines, void* to);
  /// 16 planes of `pixels` elements each, to and from `pixels` lines of 16.
  void (*to_lines)(const void* planes, int64_t pixels, void* lines);
  void (*to_planes)(const void* lines, int64_t pixels, void* planes);
};

/// The loops for f32, f16 and bf16; null for other types, and where the CPU has no AVX-512.
const Loops* loops_for(DType dtype);

}  // namespace halfnote::cpu::blocked
