// The choice among the instruction sets.
#include "kernels/cpu/pointwise/loops.h"

#include "kernels/cpu/cpu_info.h"

namespace halfnote::cpu::pointwise {

const Loops* vector_loops() {
#if defined(__x86_64__)
  static const Loops* const kChosen = []() -> const Loops* {
    if (vector_isa() == VectorIsa::kAvx512) return &kAvx512Loops;
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return avx2 ? &kAvx2Loops : nullptr;
  }();
  return kChosen;
#else
  return nullptr;
#endif
}

}  // namespace halfnote::cpu::pointwise
