// The tile loops for AVX-512. Everything that is included from elsewhere stands before the
// change of target.
#include "kernels/cpu/contraction/attention/tile_math.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
// A product that is added to something is rounded once, as one instruction: twice as fast.
#pragma GCC optimize("fp-contract=fast")

namespace halfnote::cpu::attention {

namespace avx512 {
namespace {
constexpr int kRowsAtOnce = 6, kVectorsAtOnce = 4;
#include "kernels/cpu/contraction/attention/tile_loops.inc"
}  // namespace
}  // namespace avx512

const TileMath kAvx512Tiles = {
    "avx512",         avx512::product, nullptr,
    avx512::soften,   avx512::shrink,  avx512::differentiate,
    avx512::add_term, avx512::dot,     avx512::transpose,
    nullptr,          nullptr,
};

}  // namespace halfnote::cpu::attention

#pragma GCC pop_options

#endif  // __x86_64__
