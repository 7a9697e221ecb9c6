// Rounding of f64 to 16 bits, and the array conversions through the best instruction set of this
// CPU.
//
// AVX512_BF16's own conversion is not used: it flushes subnormals to zero, ours keeps them.
#include "base/float16.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/float16_simd.h"
#include "base/system/vector_isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
// GCC 12 warns of its own deliberately undefined registers (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace halfnote {
namespace {

/// Rounds a double to an f32 with rounding to odd, so that a second rounding to fewer bits is still
/// right.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == value) return nearest;
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 1u) != 0) return nearest;
  const bool too_large = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  return std::bit_cast<float>(too_large ? bits - 1 : bits + 1);
}

bool always() { return true; }

void f32_to_f16_scalar(const float* from, Half* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = to_f16(from[i]);
}
void f32_to_bf16_scalar(const float* from, BFloat16* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}
void f16_to_f32_scalar(const Half* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = to_f32(from[i]);
}
void bf16_to_f32_scalar(const BFloat16* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = to_f32(from[i]);
}

#if defined(__x86_64__)

constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Asked of the CPU itself: clang 14 does not know "f16c" as a name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_avx2() { return vector_isa() >= VectorIsa::kAvx2 && has_f16c(); }

__attribute__((target("avx2,f16c"))) void f32_to_f16_avx2(const float* from, Half* to,
                                                          size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  f32_to_f16_scalar(from + i, to + i, count - i);
}

__attribute__((target("avx2"))) void f32_to_bf16_avx2(const float* from, BFloat16* to,
                                                      size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    const __m256i wide = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i narrow =
        _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), narrow);
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  f32_to_bf16_scalar(from + i, to + i, count - i);
}

__attribute__((target("avx2,f16c"))) void f16_to_f32_avx2(const Half* from, float* to,
                                                          size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  f16_to_f32_scalar(from + i, to + i, count - i);
}

__attribute__((target("avx2"))) void bf16_to_f32_avx2(const BFloat16* from, float* to,
                                                      size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), wide);
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  bf16_to_f32_scalar(from + i, to + i, count - i);
}

bool has_avx512() { return vector_isa() == VectorIsa::kAvx512; }

__attribute__((target("avx512f"))) void f32_to_f16_avx512(const float* from, Half* to,
                                                          size_t count) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(from + i), kNearestEven);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), half);
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  f32_to_f16_scalar(from + i, to + i, count - i);
}

__attribute__((target("avx512f"))) void f32_to_bf16_avx512(const float* from, BFloat16* to,
                                                           size_t count) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i bits = _mm512_loadu_si512(from + i);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __m512i wide = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtepi32_epi16(wide));
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  f32_to_bf16_scalar(from + i, to + i, count - i);
}

__attribute__((target("avx512f"))) void f16_to_f32_avx512(const Half* from, float* to,
                                                          size_t count) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(half));
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  f16_to_f32_scalar(from + i, to + i, count - i);
}

__attribute__((target("avx512f"))) void bf16_to_f32_avx512(const BFloat16* from, float* to,
                                                           size_t count) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
    _mm512_storeu_si512(to + i, wide);
  }
  _mm256_zeroupper();  // what follows, a tail call too, may be SSE
  bf16_to_f32_scalar(from + i, to + i, count - i);
}

#endif  // __x86_64__

constexpr FloatConverters kConverters[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, f32_to_f16_avx512, f32_to_bf16_avx512, f16_to_f32_avx512,
     bf16_to_f32_avx512},
    {"avx2", has_avx2, f32_to_f16_avx2, f32_to_bf16_avx2, f16_to_f32_avx2, bf16_to_f32_avx2},
#endif
    {"scalar", always, f32_to_f16_scalar, f32_to_bf16_scalar, f16_to_f32_scalar,
     bf16_to_f32_scalar},
};

const FloatConverters& best() {
  static const FloatConverters& chosen =
      *std::find_if(std::begin(kConverters), std::end(kConverters),
                    [](const auto& row) { return row.supported(); });
  return chosen;
}

size_t common_size(size_t from, size_t to) {
  if (from != to) std::abort();  // a bug of the caller, never input
  return from;
}

}  // namespace

Half to_f16(double value) { return to_f16(round_to_odd(value)); }
BFloat16 to_bf16(double value) { return to_bf16(round_to_odd(value)); }

std::span<const FloatConverters> float_converters() { return kConverters; }

void convert(std::span<const float> from, std::span<Half> to) {
  best().f32_to_f16(from.data(), to.data(), common_size(from.size(), to.size()));
}
void convert(std::span<const float> from, std::span<BFloat16> to) {
  best().f32_to_bf16(from.data(), to.data(), common_size(from.size(), to.size()));
}
void convert(std::span<const Half> from, std::span<float> to) {
  best().f16_to_f32(from.data(), to.data(), common_size(from.size(), to.size()));
}
void convert(std::span<const BFloat16> from, std::span<float> to) {
  best().bf16_to_f32(from.data(), to.data(), common_size(from.size(), to.size()));
}

}  // namespace halfnote
