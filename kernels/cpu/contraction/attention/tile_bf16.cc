// The tile loops for CPUs with AVX-512 and products of bf16 pairs (vdpbf16ps, which counts
// subnormals as 0). Everything that is included from elsewhere stands before the change of target.
#include "kernels/cpu/contraction/attention/tile_math.h"

#if defined(__x86_64__)
// g++ 12 warns of the undefined operand in its own header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace halfnote::cpu::attention {

namespace bf16 {
namespace {

constexpr int kRowsAtOnce = 6, kVectorsAtOnce = 4;

template <int R, int V>
void pair_block(const BFloat16* a, int64_t lda, const uint32_t* b, int64_t width, int64_t k,
                float* c, int64_t ldc, bool add) {
  __m512 sums[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v)
      sums[r][v] = add ? _mm512_loadu_ps(c + r * ldc + v * kVector) : _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < k / 2; ++i) {
    __m512bh line[V];
    for (int v = 0; v < V; ++v) {
      const __m512i words = _mm512_loadu_si512(b + i * width + v * kVector);
      __builtin_memcpy(&line[v], &words, sizeof words);
    }
    for (int r = 0; r < R; ++r) {
      int pair = 0;
      __builtin_memcpy(&pair, a + r * lda + 2 * i, sizeof pair);
      const __m512i words = _mm512_set1_epi32(pair);
      __m512bh factor;
      __builtin_memcpy(&factor, &words, sizeof words);
      for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factor, line[v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(c + r * ldc + v * kVector, sums[r][v]);
  }
}

template <int V>
void pair_rows(const BFloat16* a, int64_t lda, const uint32_t* b, int64_t width, int64_t rows,
               int64_t k, float* c, int64_t ldc, bool add) {
  int64_t row = 0;
  for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce)
    pair_block<kRowsAtOnce, V>(a + row * lda, lda, b, width, k, c + row * ldc, ldc, add);
  for (; row + 2 <= rows; row += 2)
    pair_block<2, V>(a + row * lda, lda, b, width, k, c + row * ldc, ldc, add);
  if (row < rows) pair_block<1, V>(a + row * lda, lda, b, width, k, c + row * ldc, ldc, add);
}

void pair_product(const BFloat16* a, int64_t lda, const uint32_t* b, int64_t width, int64_t rows,
                  int64_t k, float* c, int64_t ldc, bool add) {
  switch (width / kVector) {
    case 1:
      return pair_rows<1>(a, lda, b, width, rows, k, c, ldc, add);
    case 2:
      return pair_rows<2>(a, lda, b, width, rows, k, c, ldc, add);
    case 3:
      return pair_rows<3>(a, lda, b, width, rows, k, c, ldc, add);
    default:
      return pair_rows<4>(a, lda, b, width, rows, k, c, ldc, add);
  }
}

/// 16 numbers, rounded to bf16, in the low halves of 16 words. The conversion instruction counts
/// subnormals as 0, as the products do.
inline __m512i rounded(const float* from) {
  const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(from));
  __m256i words;
  __builtin_memcpy(&words, &half, sizeof words);
  return _mm512_cvtepu16_epi32(words);
}

void round_rows(const float* from, int64_t rows, int64_t width, BFloat16* to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; i += kVector) {
      const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + row * kPanel + i));
      __builtin_memcpy(static_cast<void*>(to + row * kPanel + i), &half, sizeof half);
    }
  }
}

void round_pairs(const float* from, int64_t rows, int64_t width, uint32_t* to) {
  for (int64_t row = 0; row < rows; row += 2) {
    for (int64_t i = 0; i < width; i += kVector) {
      const float* line = from + row * kPanel + i;
      const __m512i low = rounded(line);
      const __m512i high = row + 1 < rows ? rounded(line + kPanel) : _mm512_setzero_si512();
      _mm512_storeu_si512(to + row / 2 * width + i,
                          _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

}  // namespace
}  // namespace bf16

void add_pair_loops(TileMath& math) {
  math.name = "avx512_bf16";
  math.pair_product = bf16::pair_product;
  math.round_rows = bf16::round_rows;
  math.round_pairs = bf16::round_pairs;
}

}  // namespace halfnote::cpu::attention

#pragma GCC pop_options

#endif  // __x86_64__
