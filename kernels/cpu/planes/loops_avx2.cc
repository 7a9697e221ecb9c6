// The loops along outer axes for AVX2 with FMA. Everything that is included from elsewhere stands
// before the change of target.
#include "kernels/cpu/planes/loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace halfnote::cpu::planes {

namespace avx2 {
namespace {
#include "kernels/cpu/pointwise/formulas.inc"
//
#include "kernels/cpu/planes/loops.inc"
}  // namespace
}  // namespace avx2

const Loops kAvx2Loops = avx2::loops_named("avx2");

}  // namespace halfnote::cpu::planes

#pragma GCC pop_options

#endif  // __x86_64__
