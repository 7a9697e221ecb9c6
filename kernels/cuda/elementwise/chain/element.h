// What generated kernels are made of: elements of memory, the numbers they stand for, and several
// elements at once. NVRTC compiles it for GPUs, the host's compiler for the emulation.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elementwise/chain/arguments.h"
#include "kernels/math/binary.h"
#include "kernels/math/elementwise.h"
#include "kernels/math/random.h"

#ifndef __CUDACC_RTC__
#include <cstring>

#include "base/float16.h"
#endif

namespace halfnote::HN_CUDA::generated {

using halfnote::chain::Arguments;
using halfnote::chain::kThreads;

// The types of memory. f16 and bf16 are computed with in f32; bool is a byte.
using f32 = float;
using i64 = int64_t;  // seeds and steps
#ifdef __CUDACC_RTC__
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
#else
using f16 = Half;
using bf16 = BFloat16;
#endif
struct truth {
  uint8_t bits;
};

__device__ __forceinline__ float number(f32 x) { return x; }
__device__ __forceinline__ int64_t number(i64 x) { return x; }
__device__ __forceinline__ bool number(truth x) { return x.bits != 0; }

#ifdef __CUDACC_RTC__

__device__ __forceinline__ float from_bits(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float number(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ float number(bf16 x) { return from_bits(uint32_t{x.bits} << 16); }
// Conversions of two numbers at once: those of one alone take the unit of the transcendental
// functions, a quarter as fast or less.
__device__ __forceinline__ void assign(f16& to, float x) {
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
  to.bits = static_cast<uint16_t>(both);
}
__device__ __forceinline__ uint32_t upper_bf16(float x) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(x), "f"(0.0f));
  return both;
}
__device__ __forceinline__ void assign(bf16& to, float x) {
  to.bits = static_cast<uint16_t>(upper_bf16(x) >> 16);
}
/// x / y to 2 units in the last place of f32: for quotients that are rounded to 16 bits.
__device__ __forceinline__ float short_quotient(float x, float y) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
  return quotient;
}

#else

inline float from_bits(uint32_t bits) { return __uint_as_float(bits); }
inline float number(f16 x) { return to_f32(x); }
inline float number(bf16 x) { return to_f32(x); }
inline void assign(f16& to, float x) { to = to_f16(x); }
inline void assign(bf16& to, float x) { to = to_bf16(x); }
inline float short_quotient(float x, float y) { return x / y; }

#endif

__device__ __forceinline__ void assign(f32& to, float x) { to = x; }
__device__ __forceinline__ void assign(truth& to, bool x) { to.bits = x ? 1 : 0; }

/// What a step gives that keeps its result in T: rounded as memory would.
template <class T, class M>
__device__ __forceinline__ M rounded(M x) {
  T kept;
  assign(kept, x);
  return number(kept);
}

#ifdef __CUDACC_RTC__
template <>
__device__ __forceinline__ float rounded<bf16, float>(float x) {
  return from_bits(upper_bf16(x));
}
#endif

/// A dropout of one step, as ai.halfnote.Dropout draws it.
struct Drawing {
  int64_t seed, step;
  uint32_t node;

  /// The words of the elements 4·group … 4·group + 3.
  __device__ __forceinline__ math::PhiloxCounter group(int64_t group) const {
    return math::dropout_words(static_cast<uint64_t>(seed), static_cast<uint64_t>(step), node,
                               static_cast<uint64_t>(group));
  }
  __device__ __forceinline__ uint32_t word(int64_t at) const {
    const math::PhiloxCounter words = group(at / 4);
    const int k = static_cast<int>(at % 4);  // no address is taken: words stay in registers
    return k < 2 ? (k == 0 ? words.word[0] : words.word[1])
                 : (k == 2 ? words.word[2] : words.word[3]);
  }
};

/// kCount neighbours, moved with accesses of 16 bytes, or of all where these are fewer.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};

#ifdef __CUDACC_RTC__

template <int kBytes>
struct Word {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = unsigned;
};

template <class P>
__device__ __forceinline__ void move_words(const void* from, void* to) {
  using W = typename Word<sizeof(P) < 16 ? sizeof(P) : 16>::type;
#pragma unroll
  for (int i = 0; i < sizeof(P) / sizeof(W); ++i) {
    static_cast<W*>(to)[i] = static_cast<const W*>(from)[i];
  }
}

template <int kCount, class T>
__device__ __forceinline__ Pack<T, kCount> load(const T* from) {
  Pack<T, kCount> pack;
  move_words<Pack<T, kCount>>(from, &pack);
  return pack;
}
template <class T, int kCount>
__device__ __forceinline__ void store(T* to, const Pack<T, kCount>& pack) {
  move_words<Pack<T, kCount>>(&pack, to);
}

#else

template <int kCount, class T>
Pack<T, kCount> load(const T* from) {
  return __ldg(reinterpret_cast<const Pack<T, kCount>*>(from));
}
template <class T, int kCount>
void store(T* to, const Pack<T, kCount>& pack) {
  __stcg(reinterpret_cast<Pack<T, kCount>*>(to), pack);
}

#endif

}  // namespace halfnote::HN_CUDA::generated
