// The pointwise loops for any CPU, to hold the vector loops against. Without a fused multiply-add
// in the baseline each one is a call.
#include "kernels/cpu/pointwise/loops.h"

namespace halfnote::cpu::pointwise {

namespace baseline {
namespace {
#include "kernels/cpu/pointwise/formulas.inc"
//
#include "kernels/cpu/pointwise/loops.inc"
//
#include "kernels/cpu/pointwise/fused.inc"
//
#include "kernels/cpu/pointwise/rows.inc"
}  // namespace
}  // namespace baseline

const Loops kBaselineLoops = {
    "baseline",
    baseline::kLoops,
    baseline::kFused,
    baseline::round_bf16,
    baseline::from_bool,
    baseline::to_bool,
    baseline::fill,
    baseline::spread,
    baseline::spread_bf16,
    baseline::add_to_sums,
    baseline::maximum,
    baseline::sum_exponentials,
    baseline::scaled_exponentials,
    baseline::subtract,
    baseline::shifted_exponentials,
    baseline::sum_squares,
    baseline::any_with<uint32_t>,
    baseline::any_with<uint16_t>,
    baseline::adam,
};

}  // namespace halfnote::cpu::pointwise
