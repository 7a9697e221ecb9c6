// The loops along outer axes for AVX-512. Everything that is included from elsewhere stands before
// the change of target.
#include "kernels/cpu/planes/loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu::planes {

namespace avx512 {
namespace {
#include "kernels/cpu/pointwise/formulas.inc"
//
#include "kernels/cpu/planes/loops.inc"
}  // namespace
}  // namespace avx512

const Loops kAvx512Loops = avx512::loops_named("avx512");

}  // namespace halfnote::cpu::planes

#pragma GCC pop_options

#endif  // __x86_64__
