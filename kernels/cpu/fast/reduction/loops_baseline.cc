// The inner loops for any CPU of the architecture, and the choice among them.
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/fast/reduction/loops.h"

namespace halfnote::cpu::fast {

namespace baseline {
namespace {
#include "kernels/cpu/fast/reduction/pool_loops.inc"
}
}  // namespace baseline

const PoolLoops kBaselinePool = {
    "baseline",       baseline::split, baseline::merge,         baseline::maximum, baseline::sum,
    baseline::divide, baseline::keys,  baseline::first_maximum, baseline::spread,
};

const PoolLoops& pool_loops() {
#if defined(__x86_64__)
  if (vector_isa() == VectorIsa::kAvx512) return kAvx512Pool;
  if (vector_isa() == VectorIsa::kAvx2) return kAvx2Pool;
#endif
  return kBaselinePool;
}

}  // namespace halfnote::cpu::fast
