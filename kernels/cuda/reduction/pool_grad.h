// The gradients of MaxPool and AveragePool, of tensors that lie plain or channels last.
#pragma once

#include "kernels/cpu/reduction/window.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

/// Of a maximum that is found again in X, of one that kept its taps, of a mean.
enum class PoolKind { kMax, kKeptMax, kMean };

/// `channels` lie side by side: 1 where the tensors are plain, whose planes are images then. The
/// sums have the bits of the CPU's reference.
Prepared prepare_pool_grad(const KernelCall& call, const cpu::PoolGeometry& g, int64_t channels,
                           PoolKind kind);

/// Elements of a window up to which the gradient of a maximum takes several channels at once.
inline constexpr int64_t kMostTaps = 64;
inline bool has_few_taps(const cpu::PoolGeometry& g) {
  int64_t taps = 1;
  for (const int64_t along_dim : g.kernel) {
    if (along_dim > kMostTaps) return false;
    taps *= along_dim;
  }
  return taps <= kMostTaps;
}

}  // namespace halfnote::HN_CUDA
