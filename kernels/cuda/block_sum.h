// A running sum over the threads of a block.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

/// The sum of the values of all threads before this one; `total` becomes that of all threads. For
/// blocks of `kThreads`, all of which call it.
template <unsigned kThreads, class N>
__device__ N sum_of_earlier(N value, N& total) {
  constexpr unsigned kWarps = kThreads / 32;
  HN_SHARED(N[kWarps], of_warps);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  N inclusive = value;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const N other = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive = math::Add::value(other, inclusive);
  }
  N before = __shfl_up_sync(0xffffffffu, inclusive, 1);
  if (lane == 0) before = 0;
  __syncthreads();  // of_warps may still be read for the last sum
  if (lane == 31) of_warps[warp] = inclusive;
  __syncthreads();
  N of_earlier = 0;
  total = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w == warp) of_earlier = total;
    total = math::Add::value(total, of_warps[w]);
  }
  return math::Add::value(of_earlier, before);
}

}  // namespace halfnote::HN_CUDA
