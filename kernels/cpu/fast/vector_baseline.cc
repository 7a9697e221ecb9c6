// The inner loops for any CPU of the architecture, and the choice among them.
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/fast/vector_math.h"

namespace halfnote::cpu::fast {

namespace baseline {
namespace {
#include "kernels/cpu/fast/vector_loops.inc"
}
}  // namespace baseline

const VectorMath kBaselineMath = {
    "baseline",
    baseline::moments,
    baseline::normalize,
    baseline::normalize_exactly,
    baseline::gradient_sums,
    baseline::normalize_gradient,
    baseline::run_sums,
    baseline::scaled_gradient,
    baseline::normalize_line,
    baseline::scale_line,
    baseline::multiply,
    baseline::add_line_gradient,
    baseline::pair_maximum,
    baseline::line_maximum,
    baseline::line_maximum_gradient,
    baseline::pair_maximum_gradient,
    baseline::sigmoid,
    baseline::tanh,
    baseline::wide_tile,
};

const VectorMath& vector_math() {
#if defined(__x86_64__)
  if (vector_isa() == VectorIsa::kAvx512) return kAvx512Math;
#endif
  return kBaselineMath;
}

}  // namespace halfnote::cpu::fast
