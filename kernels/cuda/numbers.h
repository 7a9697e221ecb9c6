// Loading and storing in math precision on the device: f32 for the 16-bit floats, by the hardware's
// conversions where there is hardware, by ours in the emulation. Both round to nearest even.
#pragma once

#include "base/float16.h"
#include "kernels/cpu/support.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/instructions.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace halfnote::HN_CUDA {

using cpu::Math;

template <class T>
__device__ __forceinline__ Math<T> load_number(T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>) {
    return __half2float(__ushort_as_half(value.bits));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return __bfloat162float(__ushort_as_bfloat16(value.bits));
  } else {
    return value;
  }
#elif defined(__CUDACC__)
  return {};  // the host's half of a kernel is never run
#else
  return cpu::load(value);
#endif
}

template <class T>
__device__ __forceinline__ T store_number(Math<T> value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return T{static_cast<uint16_t>(bits_of_two<std::is_same_v<T, Half>>(value, 0.0f))};
  } else {
    return value;
  }
#elif defined(__CUDACC__)
  return {};
#else
  return cpu::store<T>(value);
#endif
}

/// Neighbours, 16-bit ones by pairs: two are converted at the cost of one.
template <class T, int V>
__device__ __forceinline__ void store_numbers(const Math<T> (&from)[V], T (&to)[V]) {
  int v = 0;
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    HN_UNROLL
    for (; v + 2 <= V; v += 2) {
      const uint32_t both = bits_of_two<std::is_same_v<T, Half>>(from[v], from[v + 1]);
      memcpy(&to[v], &both, sizeof(both));
    }
  }
#endif
  HN_UNROLL
  for (; v < V; ++v) to[v] = store_number<T>(from[v]);
}

/// a·b + c, fused on a GPU: without it a product takes two instructions there.
template <class M>
__device__ __forceinline__ M multiply_add(M a, M b, M c) {
#if defined(__CUDA_ARCH__)
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// Is the element that a number is stored as above zero? What is half of the smallest one or less
/// becomes zero, and NaN is not above it.
template <class T, class M>
__device__ __forceinline__ bool is_stored_positive(M value) {
  if constexpr (std::is_same_v<T, Half>) {
    return value > M(0x1p-25);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return value > M(0x1p-134);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<M, double>) {
    return value > 0x1p-150;
  } else {
    return value > 0;
  }
}

/// An f64 rounded straight to 16 bits (rounding through f32 would round twice).
template <class T>
__device__ __forceinline__ T round_to_16bit(double value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>) {
    return Half{__half_as_ushort(__double2half(value))};
  } else {
    return BFloat16{__bfloat16_as_ushort(__double2bfloat16(value))};
  }
#elif defined(__CUDACC__)
  return {};
#else
  if constexpr (std::is_same_v<T, Half>) {
    return to_f16(value);
  } else {
    return to_bf16(value);
  }
#endif
}

/// A float operand whose type is known when the kernel runs: scale, statistics, upstream gradient.
struct RealPointer {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;

  /// As an M, f32 or f64: an f64 is rounded to f32.
  template <class M>
  __device__ M load(int64_t at) const {
    switch (dtype) {
      case DType::kF16:
        return load_number(static_cast<const Half*>(data)[at]);
      case DType::kBF16:
        return load_number(static_cast<const BFloat16*>(data)[at]);
      case DType::kF64:
        return static_cast<M>(static_cast<const double*>(data)[at]);
      default:
        return static_cast<const float*>(data)[at];
    }
  }
  __device__ double operator[](int64_t at) const { return load<double>(at); }
};

/// Operands of f32, or that are not there. Where all are of them, as they mostly are, no load waits
/// for another one.
template <class... Pointers>
__device__ bool are_f32(const Pointers&... operands) {
  return ((operands.data == nullptr || operands.dtype == DType::kF32) && ...);
}
/// Element `at` of one; 0 of one that is not there.
__device__ inline float f32_at(const RealPointer& operand, int64_t at) {
  return operand.data == nullptr ? 0 : static_cast<const float*>(operand.data)[at];
}

struct RealOutput {
  void* data = nullptr;
  DType dtype = DType::kUndefined;

  __device__ void write(int64_t at, double value) const {
    switch (dtype) {
      case DType::kF16:
        static_cast<Half*>(data)[at] = round_to_16bit<Half>(value);
        return;
      case DType::kBF16:
        static_cast<BFloat16*>(data)[at] = round_to_16bit<BFloat16>(value);
        return;
      case DType::kF64:
        static_cast<double*>(data)[at] = value;
        return;
      default:
        static_cast<float*>(data)[at] = static_cast<float>(value);
    }
  }
  /// The same bits, without the arithmetic of f64, of which many GPUs have little.
  __device__ void write(int64_t at, float value) const {
    switch (dtype) {
      case DType::kF16:
        static_cast<Half*>(data)[at] = store_number<Half>(value);
        return;
      case DType::kBF16:
        static_cast<BFloat16*>(data)[at] = store_number<BFloat16>(value);
        return;
      case DType::kF64:
        static_cast<double*>(data)[at] = static_cast<double>(value);
        return;
      default:
        static_cast<float*>(data)[at] = value;
    }
  }
};

}  // namespace halfnote::HN_CUDA
