// The loops for AVX-512. Everything that is included from elsewhere stands before the change of
// target.
#include "kernels/cpu/stateful/keep.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12 takes the undefined operands in its own header for mistakes (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu {

namespace avx512 {
namespace {

using Wide = __m512i;
constexpr int kGroups = 8, kWordsAtOnce = 2;

/// Lanes 2k and 2k + 1 hold groups k and k + 4: kept() then finds them in order.
inline void counters(uint64_t group, Wide& x) {
  x = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(group)),
                       _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0));
}
inline void spread(uint32_t word, Wide& x) { x = _mm512_set1_epi64(word); }
inline void product(const Wide& x, uint32_t word, Wide& y) {
  y = _mm512_mul_epu32(x, _mm512_set1_epi64(word));
}
inline void upper(const Wide& x, Wide& y) {
  y = _mm512_shuffle_epi32(x, static_cast<_MM_PERM_ENUM>(0b11110101));
}
inline void exclusive_or(const Wide& x, const Wide& y, const Wide& z, Wide& to) {
  to = _mm512_ternarylogic_epi64(x, y, z, 0x96);
}

inline uint64_t kept(const Wide (&words)[4], uint32_t threshold) {
  constexpr auto kDoubled = static_cast<_MM_PERM_ENUM>(0b10100000);  // lower halves, twice
  const Wide first = _mm512_mask_shuffle_epi32(words[0], 0xAAAA, words[1], kDoubled);
  const Wide second = _mm512_mask_shuffle_epi32(words[2], 0xAAAA, words[3], kDoubled);
  const Wide least = _mm512_set1_epi32(static_cast<int>(threshold));
  const uint64_t even = _mm512_cmpge_epu32_mask(_mm512_unpacklo_epi64(first, second), least);
  const uint64_t odd = _mm512_cmpge_epu32_mask(_mm512_unpackhi_epi64(first, second), least);
  return even | odd << 16;
}

#include "kernels/cpu/stateful/keep_loops.inc"

}  // namespace
}  // namespace avx512

const KeepLoops kAvx512Keep = {"avx512", avx512::bits_of_groups, avx512::drop};

}  // namespace halfnote::cpu

#pragma GCC pop_options

#endif  // __x86_64__
