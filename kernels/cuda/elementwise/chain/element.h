// What generated kernels are made of: elements of memory, the numbers they stand for, and several
// elements at once. NVRTC compiles it for GPUs, the host's compiler for the emulation.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elementwise/chain/arguments.h"
#include "kernels/cuda/elementwise/chain/brief.h"
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

/// A word that a dropout draws.
struct word {
  uint32_t bits;
};

__device__ __forceinline__ float number(f32 x) { return x; }
__device__ __forceinline__ int64_t number(i64 x) { return x; }
__device__ __forceinline__ bool number(truth x) { return x.bits != 0; }
__device__ __forceinline__ uint32_t number(word x) { return x.bits; }

__device__ __forceinline__ float from_bits(uint32_t bits) { return __uint_as_float(bits); }

#ifdef __CUDACC_RTC__

__device__ __forceinline__ float number(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ float number(bf16 x) { return from_bits(uint32_t{x.bits} << 16); }
__device__ __forceinline__ void assign(f16& to, float x) {
  to.bits = static_cast<uint16_t>(bits_of_two<true>(x, 0.0f));
}
__device__ __forceinline__ void assign(bf16& to, float x) {
  to.bits = static_cast<uint16_t>(bits_of_two<false>(x, 0.0f));
}

#else

inline float number(f16 x) { return to_f32(x); }
inline float number(bf16 x) { return to_f32(x); }
inline void assign(f16& to, float x) { to = to_f16(x); }
inline void assign(bf16& to, float x) { to = to_bf16(x); }

#endif

__device__ __forceinline__ void assign(f32& to, float x) { to = x; }
__device__ __forceinline__ void assign(truth& to, bool x) { to.bits = x ? 1 : 0; }

/// One or two neighbours that go through all steps together, as memory would hold them.
template <class T, int N>
struct Some {
  T at[N];
  template <int kIndex>
  __device__ __forceinline__ auto get() const {
    return number(at[kIndex]);
  }
};

#ifdef __CUDACC_RTC__
/// Two of 16 bits in a register: rounded by one instruction, and some arithmetic does both at once.
template <>
struct Some<f16, 2> {
  uint32_t both;
  template <int kIndex>
  __device__ __forceinline__ float get() const {
    return number(f16{static_cast<uint16_t>(both >> (16 * kIndex))});
  }
};
template <>
struct Some<bf16, 2> {
  uint32_t both;
  template <int kIndex>
  __device__ __forceinline__ float get() const {
    return from_bits(kIndex == 0 ? both << 16 : both & 0xffff0000u);
  }
};
#endif

/// What a step gives, rounded as memory would.
template <class T, class M>
__device__ __forceinline__ Some<T, 1> kept(M x) {
  Some<T, 1> some;
  assign(some.at[0], x);
  return some;
}
template <class T, class M>
__device__ __forceinline__ Some<T, 2> kept(M first, M second) {
#ifdef __CUDACC_RTC__
  if constexpr (sizeof(T) == 2) {
    return {bits_of_two<std::is_same_v<T, f16>>(first, second)};
  } else
#endif
  {
    Some<T, 2> some;
    assign(some.at[0], first);
    assign(some.at[1], second);
    return some;
  }
}

/// The step `formula` for each.
template <class T, class Formula, class... X>
__device__ __forceinline__ Some<T, 1> each(const Formula& formula, const Some<X, 1>&... x) {
  return kept<T>(formula(x.template get<0>()...));
}
template <class T, class Formula, class... X>
__device__ __forceinline__ Some<T, 2> each(const Formula& formula, const Some<X, 2>&... x) {
  return kept<T>(formula(x.template get<0>()...), formula(x.template get<1>()...));
}

/// Sum, difference and product of two of one type. In f32 and rounded then, or rounded once, is the
/// same for 16 bits: f32 has more than twice as many.
template <class T, int N>
__device__ __forceinline__ Some<T, N> sum(const Some<T, N>& a, const Some<T, N>& b) {
  return each<T>([](float x, float y) { return x + y; }, a, b);
}
template <class T, int N>
__device__ __forceinline__ Some<T, N> difference(const Some<T, N>& a, const Some<T, N>& b) {
  return each<T>([](float x, float y) { return x - y; }, a, b);
}
template <class T, int N>
__device__ __forceinline__ Some<T, N> product(const Some<T, N>& a, const Some<T, N>& b) {
  return each<T>([](float x, float y) { return x * y; }, a, b);
}

#ifdef __CUDACC_RTC__
__device__ __forceinline__ Some<f16, 2> sum(const Some<f16, 2>& a, const Some<f16, 2>& b) {
  Some<f16, 2> c;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c.both) : "r"(a.both), "r"(b.both));
  return c;
}
__device__ __forceinline__ Some<f16, 2> difference(const Some<f16, 2>& a, const Some<f16, 2>& b) {
  Some<f16, 2> c;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(c.both) : "r"(a.both), "r"(b.both));
  return c;
}
__device__ __forceinline__ Some<f16, 2> product(const Some<f16, 2>& a, const Some<f16, 2>& b) {
  Some<f16, 2> c;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c.both) : "r"(a.both), "r"(b.both));
  return c;
}
/// a·b + c, which sm_80 has for bf16, where it has neither + nor ·.
__device__ __forceinline__ Some<bf16, 2> fused(uint32_t a, uint32_t b, uint32_t c) {
  Some<bf16, 2> d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d.both) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ Some<bf16, 2> sum(const Some<bf16, 2>& a, const Some<bf16, 2>& b) {
  return fused(a.both, 0x3f803f80u, b.both);  // 1
}
__device__ __forceinline__ Some<bf16, 2> difference(const Some<bf16, 2>& a,
                                                    const Some<bf16, 2>& b) {
  return fused(b.both, 0xbf80bf80u, a.both);  // -1
}
__device__ __forceinline__ Some<bf16, 2> product(const Some<bf16, 2>& a, const Some<bf16, 2>& b) {
  return fused(a.both, b.both, 0x80008000u);  // -0, which leaves every zero its sign
}
#endif

/// N neighbours in memory, or in a pack.
template <int N, class T>
__device__ __forceinline__ Some<T, N> some(const T* from) {
#ifdef __CUDACC_RTC__
  if constexpr (N == 2 && sizeof(T) == 2) {
    return {*reinterpret_cast<const uint32_t*>(from)};
  } else
#endif
  {
    Some<T, N> some;
#pragma unroll
    for (int i = 0; i < N; ++i) some.at[i] = from[i];
    return some;
  }
}
template <class T, int N>
__device__ __forceinline__ void put(T* to, const Some<T, N>& some) {
#ifdef __CUDACC_RTC__
  if constexpr (N == 2 && sizeof(T) == 2) {
    *reinterpret_cast<uint32_t*>(to) = some.both;
  } else
#endif
  {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = some.at[i];
  }
}
/// Two that do not lie side by side.
template <class T>
__device__ __forceinline__ Some<T, 2> two(T first, T second) {
  alignas(2 * sizeof(T)) const T both[] = {first, second};
  return some<2>(both);
}
template <class T>
__device__ __forceinline__ Some<T, 1> one(const T& value) {
  return {value};
}
/// Two of one value.
template <class T>
__device__ __forceinline__ Some<T, 2> same(T value) {
  return two(value, value);
}

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

/// What a thread has of a piece of a row: groups of kWidth neighbours that begin where an access of
/// 16 bytes may, of as many threads as the row has every one's next one, then of the elements
/// before and behind the groups. The shares, and the order in them, follow from shapes.
template <int kWidth>
struct RowShare {
  int64_t begin, first_group, last_end, before, lane;
  int bits;
  int64_t groups, grouped, count;  // of the share: elements in groups, and all

  __device__ __forceinline__ RowShare(const Arguments& a, int64_t item)
      : lane(lane_of(a)), bits(a.row_bits) {
    const int64_t row = item / a.blocks, from = item % a.blocks * a.piece;
    const int64_t to = from + a.piece < a.columns ? from + a.piece : a.columns;
    const int64_t end = row * a.columns + to;
    begin = row * a.columns + from;
    first_group = (begin + kWidth - 1) / kWidth * kWidth;
    last_end = end / kWidth * kWidth;
    const bool some = first_group < last_end;
    before = (some ? first_group : end) - begin;
    groups = some ? own((last_end - first_group) / kWidth) : 0;
    grouped = groups * kWidth;
    count = grouped + own(some ? before + end - last_end : before);
  }
  __device__ __forceinline__ static int lane_of(const Arguments& a) {
    return static_cast<int>(threadIdx.x) & ((1 << a.row_bits) - 1);
  }
  /// How many of so many are this thread's.
  __device__ __forceinline__ int64_t own(int64_t all) const {
    return (all - lane + (1 << bits) - 1) >> bits;
  }
  /// Where a group begins: a product, so that the compiler knows that accesses of it are aligned.
  __device__ __forceinline__ int64_t group(int64_t g) const {
    return (first_group / kWidth + lane + (g << bits)) * kWidth;
  }
  /// Where element i of the share is.
  __device__ __forceinline__ int64_t at(int64_t i) const {
    if (i < grouped) return group(i / kWidth) + i % kWidth;
    const int64_t other = lane + ((i - grouped) << bits);
    return other < before ? begin + other : last_end + (other - before);
  }
};

/// The sum of what the 2^bits threads of a row have, in one order. All threads of the block must
/// come.
__device__ __forceinline__ double sum_of_row(double sum, int bits) {
  for (int distance = (1 << (bits < 5 ? bits : 5)) / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (bits <= 5) return sum;
#ifdef __CUDACC_RTC__
  __shared__ double of_warps[kThreads / 32];
#else
  HN_SHARED(double[kThreads / 32], of_warps);
#endif
  __syncthreads();  // it may still be read for the row before
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  double total = of_warps[0];
  for (int w = 1; w < kThreads / 32; ++w) total += of_warps[w];
  return total;
}

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
