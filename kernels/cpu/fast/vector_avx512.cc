// The inner loops for AVX-512. Everything that is included from elsewhere stands before the change
// of target.
#include "kernels/cpu/fast/vector_math.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu::fast {

namespace avx512 {
namespace {
#include "kernels/cpu/fast/vector_loops.inc"
}
}  // namespace avx512

const VectorMath kAvx512Math = {
    "avx512",
    avx512::moments,
    avx512::normalize,
    avx512::normalize_exactly,
    avx512::gradient_sums,
    avx512::normalize_gradient,
    avx512::run_sums,
    avx512::scaled_gradient,
    avx512::normalize_line,
    avx512::scale_line,
    avx512::multiply,
    avx512::add_line_gradient,
    avx512::pair_maximum,
    avx512::line_maximum,
    avx512::line_maximum_gradient,
    avx512::pair_maximum_gradient,
    avx512::sigmoid,
    avx512::tanh,
    avx512::wide_tile,
};

}  // namespace halfnote::cpu::fast

#pragma GCC pop_options

#endif  // __x86_64__
