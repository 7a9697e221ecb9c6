// The choice among the instruction sets.
#include "kernels/cpu/pointwise/loops.h"

#include "kernels/cpu/best_loops.h"

namespace halfnote::cpu::pointwise {

const Loops* vector_loops() { return best_loops<kAvx512Loops, kAvx2Loops, Loops>(nullptr); }

}  // namespace halfnote::cpu::pointwise
