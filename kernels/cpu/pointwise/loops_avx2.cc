// The pointwise loops for AVX2 with FMA. Everything that is included from elsewhere stands before
// the change of target.
#include "kernels/cpu/pointwise/loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace halfnote::cpu::pointwise {

namespace avx2 {
namespace {
#include "kernels/cpu/pointwise/formulas.inc"
//
#include "kernels/cpu/pointwise/loops.inc"
//
#include "kernels/cpu/pointwise/fused.inc"
//
#include "kernels/cpu/pointwise/rows.inc"
}  // namespace
}  // namespace avx2

const Loops kAvx2Loops = {
    "avx2",
    avx2::kLoops,
    avx2::kFused,
    avx2::round_bf16,
    avx2::from_bool,
    avx2::to_bool,
    avx2::fill,
    avx2::spread,
    avx2::spread_bf16,
    avx2::add_to_sums,
    avx2::maximum,
    avx2::sum_exponentials,
    avx2::scaled_exponentials,
    avx2::subtract,
    avx2::shifted_exponentials,
    avx2::sum_squares,
    avx2::any_with<uint32_t>,
    avx2::any_with<uint16_t>,
    avx2::adam,
};

}  // namespace halfnote::cpu::pointwise

#pragma GCC pop_options

#endif  // __x86_64__
