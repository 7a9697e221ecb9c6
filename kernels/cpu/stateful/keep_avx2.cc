// The loops for AVX2. Everything that is included from elsewhere stands before the change of
// target.
#include "kernels/cpu/stateful/keep.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace halfnote::cpu {

namespace avx2 {
namespace {

using Wide = __m256i;
constexpr int kGroups = 4, kWordsAtOnce = 1;

/// Lanes 2k and 2k + 1 hold groups k and k + 2: kept() then finds them in order.
inline void counters(uint64_t group, Wide& x) {
  x = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(group)),
                       _mm256_set_epi64x(3, 1, 2, 0));
}
inline void spread(uint32_t word, Wide& x) { x = _mm256_set1_epi64x(word); }
inline void product(const Wide& x, uint32_t word, Wide& y) {
  y = _mm256_mul_epu32(x, _mm256_set1_epi64x(word));
}
inline void upper(const Wide& x, Wide& y) { y = _mm256_shuffle_epi32(x, 0b11110101); }
inline void exclusive_or(const Wide& x, const Wide& y, const Wide& z, Wide& to) {
  to = _mm256_xor_si256(_mm256_xor_si256(x, y), z);
}

/// The bits of eight words.
inline uint64_t at_least(const Wide& words, const Wide& least) {
  const Wide hit = _mm256_cmpeq_epi32(_mm256_max_epu32(words, least), words);
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(hit)));
}

inline uint64_t kept(const Wide (&words)[4], uint32_t threshold) {
  constexpr int kDoubled = 0b10100000;  // lower halves, twice
  const Wide first =
      _mm256_blend_epi32(words[0], _mm256_shuffle_epi32(words[1], kDoubled), 0b10101010);
  const Wide second =
      _mm256_blend_epi32(words[2], _mm256_shuffle_epi32(words[3], kDoubled), 0b10101010);
  const Wide least = _mm256_set1_epi32(static_cast<int>(threshold));
  return at_least(_mm256_unpacklo_epi64(first, second), least) |
         at_least(_mm256_unpackhi_epi64(first, second), least) << 8;
}

#include "kernels/cpu/stateful/keep_loops.inc"

}  // namespace
}  // namespace avx2

const KeepLoops kAvx2Keep = {"avx2", avx2::bits_of_groups, avx2::drop};

}  // namespace halfnote::cpu

#pragma GCC pop_options

#endif  // __x86_64__
