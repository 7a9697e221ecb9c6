// The loops of depthwise convolutions for AVX-512. Everything that is included from elsewhere
// stands before the change of target.
#include <array>
#include <utility>

#include "kernels/cpu/depthwise/loops.h"

#if defined(__x86_64__)

#include <immintrin.h>

// The compiler's own header sets some results from themselves (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")

#define INLINE [[gnu::always_inline]] inline

namespace halfnote::cpu::depthwise {

namespace avx512 {
namespace {

using Vector = __m512;
constexpr int kMaxOutputs = 16, kMaxSums = 12;

INLINE Vector load(const float* x) { return _mm512_loadu_ps(x); }
INLINE void store(Vector value, float* to) { _mm512_storeu_ps(to, value); }
INLINE Vector zero() { return _mm512_setzero_ps(); }
INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
INLINE Vector fma(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }

#include "kernels/cpu/depthwise/loops.inc"

}  // namespace
}  // namespace avx512

const Loops kAvx512Loops = {"avx512", avx512::sum_taps, avx512::add_products, avx512::to_lines,
                            avx512::to_planes};

}  // namespace halfnote::cpu::depthwise

#undef INLINE
#pragma GCC pop_options
#pragma GCC diagnostic pop

#endif  // __x86_64__
