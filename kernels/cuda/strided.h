// Where several tensors stand at a position of one index space: whatever broadcasts, permutes,
// slices or pads. Compiled by nvcc, by NVRTC and for the host.
#pragma once

#include "kernels/cuda/divisor.h"

namespace halfnote {

/// The strides of N tensors over one index space, small enough to be a kernel's argument.
template <int N>
struct Strided {
  static constexpr int kDims = 8;
  int rank = 0;
  int64_t count = 0;
  Divisor dims[kDims];
  int64_t strides[N][kDims] = {};

  /// Where the first K tensors stand at position `at`.
  template <int K>
  HN_HD void offsets(int64_t at, int64_t (&offset)[K]) const {
    static_assert(K <= N);
    for (int k = 0; k < K; ++k) offset[k] = 0;
    for (int d = rank - 1; d > 0; --d) {
      const int64_t rest = dims[d].quotient(at);
      const int64_t index = at - rest * dims[d].value();
      for (int k = 0; k < K; ++k) offset[k] += index * strides[k][d];
      at = rest;
    }
    for (int k = 0; k < K; ++k) offset[k] += at * strides[k][0];
  }
};

}  // namespace halfnote
