// The choice among the instruction sets.
#include "kernels/cpu/pointwise/loops.h"

#include "kernels/cpu/cpu_info.h"

namespace halfnote::cpu::pointwise {

const Loops* vector_loops() {
#if defined(__x86_64__)
  if (vector_isa() == VectorIsa::kAvx512) return &kAvx512Loops;
  if (vector_isa() == VectorIsa::kAvx2) return &kAvx2Loops;
#endif
  return nullptr;
}

}  // namespace halfnote::cpu::pointwise
