// The pointwise loops for AVX-512. Everything that is included from elsewhere stands before the
// change of target.
#include "kernels/cpu/pointwise/loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu::pointwise {

namespace avx512 {
namespace {
#include "kernels/cpu/pointwise/formulas.inc"
//
#include "kernels/cpu/pointwise/loops.inc"
//
#include "kernels/cpu/pointwise/fused.inc"
//
#include "kernels/cpu/pointwise/rows.inc"
}  // namespace
}  // namespace avx512

const Loops kAvx512Loops = {
    "avx512",
    avx512::kLoops,
    avx512::kFused,
    avx512::round_bf16,
    avx512::from_bool,
    avx512::to_bool,
    avx512::fill,
    avx512::spread,
    avx512::spread_bf16,
    avx512::add_to_sums,
    avx512::maximum,
    avx512::sum_exponentials,
    avx512::scaled_exponentials,
    avx512::subtract,
    avx512::shifted_exponentials,
    avx512::sum_squares,
    avx512::any_with<uint32_t>,
    avx512::any_with<uint16_t>,
    avx512::adam,
};

}  // namespace halfnote::cpu::pointwise

#pragma GCC pop_options

#endif  // __x86_64__
