// The tile loops for any CPU of the architecture, and the choice among them.
#include "kernels/cpu/contraction/attention/tile_math.h"
#include "kernels/cpu/cpu_info.h"

namespace halfnote::cpu::attention {

namespace baseline {
namespace {
constexpr int kRowsAtOnce = 2, kVectorsAtOnce = 1;
#include "kernels/cpu/contraction/attention/tile_loops.inc"
}  // namespace
}  // namespace baseline

const TileMath kBaselineTiles = {
    "baseline",
    baseline::product,
    nullptr,
    baseline::soften,
    baseline::shrink,
    baseline::differentiate,
    baseline::add_term,
    baseline::dot,
    baseline::transpose,
    nullptr,
    nullptr,
};

const TileMath& tile_math() {
#if defined(__x86_64__)
  static const TileMath kChosen = [] {
    if (vector_isa() == VectorIsa::kBaseline) return kBaselineTiles;
    if (vector_isa() == VectorIsa::kAvx2) return kAvx2Tiles;
    TileMath math = kAvx512Tiles;
    if (bf16_dots() == Bf16Dots::kFast) add_pair_loops(math);
    return math;
  }();
  return kChosen;
#else
  return kBaselineTiles;
#endif
}

}  // namespace halfnote::cpu::attention
