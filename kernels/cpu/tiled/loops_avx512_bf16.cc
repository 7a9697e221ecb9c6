// The loops of a tiled product for the bf16 dot products of avx512_bf16. Everything that is
// included from elsewhere stands before the change of target.
#if defined(__x86_64__)

#include <immintrin.h>

#include <utility>

#include "kernels/cpu/tiled/loops.h"

// The compiler's own header sets some results from themselves (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace halfnote::cpu::tiled {

namespace avx512_bf16 {
namespace {
#include "kernels/cpu/tiled/loops.inc"

/// Two neighbouring k in a lane, the first in its lower half; past the end of k there are zeros.
struct BF16 {
  using Stored = uint16_t;
  static constexpr int64_t kOfLane = 2;
  static constexpr bool kReadsStored = true;
  static __m512 along(const Stored* from, int64_t count) {
    const __mmask32 mask = count >= 32 ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from));
  }
  static __m512 across(const Stored* from, int64_t step, int64_t count, __mmask16 lines) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lines, from));
    if (count < 2) return _mm512_castsi512_ps(low);
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lines, from + step));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
  struct Lane {
    __m512 first, second;
  };
  /// A lane of 32 lines that follow one another in memory.
  static Lane across_all(const Stored* from, int64_t step, bool has_second) {
    const __m512i low = _mm512_loadu_si512(from);
    const __m512i high = has_second ? _mm512_loadu_si512(from + step) : _mm512_setzero_si512();
    const __m512i first =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    return {_mm512_castsi512_ps(_mm512_permutex2var_epi16(low, first, high)),
            _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, second, high))};
  }
  static __m512 add_product(__m512 sum, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};

}  // namespace
}  // namespace avx512_bf16

constinit const Loops kAvx512BF16 = avx512_bf16::loops_of<avx512_bf16::BF16>("avx512_bf16");

}  // namespace halfnote::cpu::tiled

#pragma GCC pop_options
#pragma GCC diagnostic pop

#endif  // __x86_64__
