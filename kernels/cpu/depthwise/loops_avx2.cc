// The loops of depthwise convolutions for AVX2 with FMA: a line is two vectors. Everything that is
// included from elsewhere stands before the change of target.
#include <array>
#include <utility>

#include "kernels/cpu/depthwise/loops.h"

#if defined(__x86_64__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

#define INLINE [[gnu::always_inline]] inline

namespace halfnote::cpu::depthwise {

namespace avx2 {
namespace {

struct Vector {
  __m256 low, high;
};
constexpr int kMaxOutputs = 6, kMaxSums = 6;

INLINE Vector load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
INLINE void store(const Vector& value, float* to) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
INLINE Vector zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE Vector add(const Vector& a, const Vector& b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
INLINE Vector fma(const Vector& a, const Vector& b, const Vector& sum) {
  return {_mm256_fmadd_ps(a.low, b.low, sum.low), _mm256_fmadd_ps(a.high, b.high, sum.high)};
}

#include "kernels/cpu/depthwise/loops.inc"

}  // namespace
}  // namespace avx2

const Loops kAvx2Loops = {"avx2", avx2::sum_taps, avx2::add_products, avx2::to_lines,
                          avx2::to_planes};

}  // namespace halfnote::cpu::depthwise

#undef INLINE
#pragma GCC pop_options

#endif  // __x86_64__
