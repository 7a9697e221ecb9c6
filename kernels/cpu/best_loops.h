// The choice among tables of loops that are compiled for several instruction sets.
#pragma once

#include "base/system/vector_isa.h"

namespace halfnote::cpu {

/// The table for vector_isa(): `baseline` (null: there is none) where it has no vectors. The others
/// need not be defined but on x86-64.
template <const auto& kAvx512, const auto& kAvx2, class Loops>
const Loops* best_loops(const Loops* baseline) {
#if defined(__x86_64__)
  if (vector_isa() == VectorIsa::kAvx512) return &kAvx512;
  if (vector_isa() == VectorIsa::kAvx2) return &kAvx2;
#endif
  return baseline;
}

}  // namespace halfnote::cpu
