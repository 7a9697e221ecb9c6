// Instructions of a GPU that C++ has no word for. Compiled by nvcc, by NVRTC and for the host.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/math/host_device.h"

namespace halfnote::HN_CUDA {

#if defined(__CUDA_ARCH__)
/// Two numbers, rounded to f16 or else to bf16, as neighbours in memory. A conversion of one alone
/// takes the unit of the transcendental functions, a quarter as fast or less.
template <bool kF16>
__device__ __forceinline__ uint32_t bits_of_two(float first, float second) {
  uint32_t both;
  if constexpr (kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  }
  return both;
}
#endif

/// 2^x, 2 ulp of f32 off on a GPU; what f32 has no normal number for is zero there.
__device__ __forceinline__ float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined(__CUDACC__)
  return x;  // the host's half of a kernel is never run
#else
  return std::exp2(x);
#endif
}

}  // namespace halfnote::HN_CUDA
