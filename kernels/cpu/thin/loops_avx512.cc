// The loop of convolutions with few results for AVX-512. Everything that is included from
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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")

#define INLINE [[gnu::always_inline]] inline

namespace halfnote::cpu::thin {

namespace avx512 {
namespace {

using Vector = __m512;
constexpr int kWidth = 16, kMaxSums = 24;

INLINE Vector load(const float* x) { return _mm512_loadu_ps(x); }
INLINE void store(Vector value, float* to) { _mm512_storeu_ps(to, value); }
INLINE Vector all(const float* x) { return _mm512_set1_ps(*x); }
INLINE Vector fma(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }

#include "kernels/cpu/thin/loops.inc"

}  // namespace
}  // namespace avx512

const Loops kAvx512Loops = {"avx512", avx512::sum_taps};

}  // namespace halfnote::cpu::thin

#undef INLINE
#pragma GCC pop_options
#pragma GCC diagnostic pop

#endif  // __x86_64__
