// The inner loops of LAMB and Adafactor for AVX2 with FMA. Everything that is included from
// elsewhere stands before the change of target.
#include "kernels/cpu/stateful/update_loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace halfnote::cpu {

namespace avx2 {
namespace {
#include "kernels/cpu/stateful/update_loops.inc"
}
}  // namespace avx2

const UpdateLoops kAvx2UpdateLoops = {
    "avx2",           avx2::lamb_moments, avx2::lamb_step,    avx2::add_squares, avx2::move_moments,
    avx2::over_roots, avx2::over_factors, avx2::decayed_step,
};

}  // namespace halfnote::cpu

#pragma GCC pop_options

#endif  // __x86_64__
