// ai.halfnote.MaxPool and MaxPoolTapsGrad: a maximum that notes for its gradient which tap of each
// window it is, in a byte, so that the gradient reads no X. The taps of windows (N, C, spatial…)
// are (N, spatial…, C), however X and Y lie.
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
};

/// Reads a MaxPool(X) -> Y, taps?; the reason why it cannot be done, or an empty string.
std::string plan_kept_max_pool(const KernelCall& call, KeptMaxPool& pool);
/// Reads a MaxPoolTapsGrad(dY, taps, shape) -> dX.
std::string plan_kept_max_pool_grad(const KernelCall& call, KeptMaxPool& pool);

/// Where the tap of a plane's window at `position` is.
constexpr int64_t place_of_tap(int64_t plane, int64_t position, int64_t channels, int64_t pixels) {
  return (plane / channels * pixels + position) * channels + plane % channels;
}

}  // namespace halfnote::cpu
