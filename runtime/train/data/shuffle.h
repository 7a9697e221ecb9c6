// The order of an epoch as a pure function of (samples, seed, epoch): a permutation that is looked
// up one place at a time, so that nothing is stored and a run resumes at any place at once.
//
// A balanced Feistel network (Luby and Rackoff 1988) over the next power of four, its round
// function Philox4x32-10 keyed by the seed with round and epoch in the counter; values outside the
// range walk on along their cycle until they are inside (Black and Rogaway 2002), fewer than four
// steps on average.
#pragma once

#include <cstdint>

namespace halfnote {

class Shuffle {
 public:
  /// `samples` is at most 2^40.
  Shuffle(int64_t samples, uint64_t seed, int64_t epoch);
  /// The sample at `place` of the order; both in [0, samples).
  int64_t operator[](int64_t place) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  uint64_t samples_ = 0;
  uint64_t seed_ = 0;
  uint64_t epoch_ = 0;
  int half_bits_ = 0;
};

}  // namespace halfnote
