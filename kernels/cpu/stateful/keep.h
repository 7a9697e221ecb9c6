// Which elements a dropout keeps, 64 of them in a word of bits: the random words of
// ai.halfnote.Dropout (docs/operators.md) against a threshold, many groups at a time. Compiled for
// the baseline, AVX2 and AVX-512, which give the same bits.
#pragma once

#include <cstdint>

namespace halfnote::cpu {

/// A dropout of one step.
struct KeepStream {
  uint64_t seed = 0, step = 0;
  uint32_t node = 0;
  uint64_t threshold = 0;  // element i is kept when its word r(i) ≥ threshold, of 0 … 2³²
};

/// ratio·2³², rounded up: u ≥ ratio with u = r·2⁻³² is r ≥ this. `ratio` is within [0, 1].
uint64_t keep_threshold(float ratio);
/// What kept elements are multiplied by: 1/(1 − ratio), and 0 for a ratio of 1.
float keep_factor(float ratio);

/// Bit k of bits[w]: is element `first` + 64·w + k kept?
void keep_bits(const KeepStream& stream, uint64_t first, int64_t words, uint64_t* bits);

struct KeepLoops {
  const char* name;

  /// The same from element 4·group on; the threshold is below 2³².
  void (*bits_of_groups)(const KeepStream& stream, uint64_t group, int64_t words, uint64_t* bits);
  /// y = x·factor where the bit is set, else 0; 64 elements a word of bits. y may be x.
  void (*drop)(const float* x, int64_t n, const uint64_t* bits, float factor, float* y);
};

/// The loops for this CPU.
const KeepLoops& keep_loops();

extern const KeepLoops kBaselineKeep;
/// Only on x86-64.
extern const KeepLoops kAvx2Keep, kAvx512Keep;

}  // namespace halfnote::cpu
