// The loops of the pointwise instructions: f32 in, f32 out, over a tile that lies in the
// first-level cache. Compiled for the
// baseline, for AVX2 with FMA and for AVX-512; all give the same bits.
#pragma once

#include <cstdint>

#include "base/ops/pointwise.h"

namespace halfnote::cpu::pointwise {

/// y[i] = op(in[0][i], in[1][i], in[2][i]); y may be one of the operands. `parameters` are those of
/// the step.
using Loop = void (*)(const float* const* in, float* y, int64_t count, const float* parameters);

struct Loops {
  const char* name;
  const Loop* of;  // in the order of PointwiseOp
  /// Rounds to bf16 and back; y may be x.
  void (*round_bf16)(const float* x, float* y, int64_t count);
  void (*from_bool)(const uint8_t* x, float* y, int64_t count);
  /// Anything but 0 is true.
  void (*to_bool)(const float* x, uint8_t* y, int64_t count);
  void (*fill)(float value, float* y, int64_t count);
};

/// The vector loops for this CPU; null where it has neither AVX-512 nor AVX2 with FMA.
const Loops* vector_loops();

extern const Loops kBaselineLoops;
#if defined(__x86_64__)
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;
#endif

}  // namespace halfnote::cpu::pointwise
