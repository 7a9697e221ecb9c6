// The inner loops of LAMB and Adafactor for AVX-512. Everything that is included from elsewhere
// stands before the change of target.
#include "kernels/cpu/stateful/update_loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu {

namespace avx512 {
namespace {
#include "kernels/cpu/stateful/update_loops.inc"
}
}  // namespace avx512

const UpdateLoops kAvx512UpdateLoops = {
    "avx512",
    avx512::lamb_moments,
    avx512::lamb_step,
    avx512::add_squares,
    avx512::move_moments,
    avx512::over_roots,
    avx512::over_factors,
    avx512::decayed_step,
};

}  // namespace halfnote::cpu

#pragma GCC pop_options

#endif  // __x86_64__
