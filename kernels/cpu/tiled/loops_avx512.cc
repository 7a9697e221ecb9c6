// The loops of a tiled product for AVX-512: f32, and 16-bit types that become f32 on the way into
// the panels. Everything that is included from elsewhere stands before the change of target.
#if defined(__x86_64__)

#include <immintrin.h>

#include <utility>

#include "kernels/cpu/tiled/loops.h"

// The compiler's own header sets some results from themselves (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu::tiled {

namespace avx512 {
namespace {
#include "kernels/cpu/tiled/loops.inc"
}
}  // namespace avx512

constinit const Loops kAvx512F32 = avx512::loops_of<avx512::F32>("avx512");
constinit const Loops kAvx512F16 = avx512::loops_of<avx512::F16>("avx512 via f32");
constinit const Loops kAvx512BF16AsF32 = avx512::loops_of<avx512::BF16AsF32>("avx512 via f32");

}  // namespace halfnote::cpu::tiled

#pragma GCC pop_options
#pragma GCC diagnostic pop

#endif  // __x86_64__
