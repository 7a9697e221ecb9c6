// ai.halfnote.MaxPool and MaxPoolTapsGrad: a maximum that notes for its gradient which tap of each
// window it is, in a byte, so that the gradient reads no X. The taps of windows (N, C, spatial…)
// are (N, spatial…, C), however X and Y lie. NormalizedMaxPoolGrad: the gradient of such a maximum
// and of the BatchNormalization before it.
#pragma once

#include <cstdint>
#include <string>

#include "base/ops/taps.h"
#include "kernels/cpu/reduction/window.h"

namespace halfnote::cpu {

struct KeptMaxPool {
  PoolGeometry g;
  int64_t channels = 1;
  bool relu = false;
  DType scale = DType::kUndefined;  // of the numbers whose signs X is multiplied with, if it is
};

/// What X of a channel is multiplied with before the largest is looked for: 1, -1, or 0, where all
/// are alike, NaN too, and the first of each window is taken.
constexpr int sign_of(double scale) { return scale > 0 ? 1 : scale < 0 ? -1 : 0; }

/// The operands of NormalizedMaxPoolGrad(dY, taps, X, scale, mean, inv_std, dScale, dB) -> dX by
/// their places; all behind X are numbers a channel.
struct NormalizedMaxPoolPlaces {
  static constexpr size_t kX = 2, kScale = 3, kMean = 4, kInvStd = 5, kDScale = 6, kDBias = 7;
  static constexpr size_t kCount = 8;
};

/// Reads a MaxPool(X, scale?) -> Y, taps?; the reason why it cannot be done, or an empty string.
std::string plan_kept_max_pool(const KernelCall& call, KeptMaxPool& pool);
/// Reads a MaxPoolTapsGrad(dY, taps, shape) -> dX.
std::string plan_kept_max_pool_grad(const KernelCall& call, KeptMaxPool& pool);

/// Reads a NormalizedMaxPoolGrad.
std::string plan_normalized_max_pool_grad(const KernelCall& call, KeptMaxPool& pool);

/// Where the tap of a plane's window at `position` is.
constexpr int64_t place_of_tap(int64_t plane, int64_t position, int64_t channels, int64_t pixels) {
  return (plane / channels * pixels + position) * channels + plane % channels;
}

}  // namespace halfnote::cpu
