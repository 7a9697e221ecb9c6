// The tile loops for AVX2. Everything that is included from elsewhere stands before the
// change of target.
#include "kernels/cpu/contraction/attention/tile_math.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,fma")
// A product that is added to something is rounded once, as one instruction: twice as fast.
#pragma GCC optimize("fp-contract=fast")

namespace halfnote::cpu::attention {

namespace avx2 {
namespace {
constexpr int kRowsAtOnce = 6, kVectorsAtOnce = 1;
#include "kernels/cpu/contraction/attention/tile_loops.inc"
}  // namespace
}  // namespace avx2

const TileMath kAvx2Tiles = {
    "avx2",         avx2::product, nullptr,         avx2::soften, avx2::shrink, avx2::differentiate,
    avx2::add_term, avx2::dot,     avx2::transpose, nullptr,      nullptr,
};

}  // namespace halfnote::cpu::attention

#pragma GCC pop_options

#endif  // __x86_64__
