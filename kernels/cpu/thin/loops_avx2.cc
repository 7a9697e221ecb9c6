// The loop of convolutions with few results for AVX2 with FMA. Everything that is included from
// elsewhere stands before the change of target.
#include <array>
#include <utility>

#include "kernels/cpu/thin/loops.h"

#if defined(__x86_64__)

#include <immintrin.h>

// The compiler's own header sets some results from themselves (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma")

#define INLINE [[gnu::always_inline]] inline

namespace halfnote::cpu::thin {

namespace avx2 {
namespace {

using Vector = __m256;
constexpr int kWidth = 8, kMaxSums = 12;

INLINE Vector load(const float* x) { return _mm256_loadu_ps(x); }
INLINE void store(Vector value, float* to) { _mm256_storeu_ps(to, value); }
INLINE Vector all(const float* x) { return _mm256_broadcast_ss(x); }
INLINE Vector fma(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }

#include "kernels/cpu/thin/loops.inc"

}  // namespace
}  // namespace avx2

const Loops kAvx2Loops = {"avx2", avx2::sum_taps};

}  // namespace halfnote::cpu::thin

#undef INLINE
#pragma GCC pop_options
#pragma GCC diagnostic pop

#endif  // __x86_64__
