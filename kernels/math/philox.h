// Philox4x32-10: counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011). The same key and counter give the same four words anywhere, so nothing has to be
// stored to draw them again.
#pragma once

#include "kernels/math/host_device.h"

namespace halfnote::math {

struct PhiloxKey {
  uint32_t low = 0, high = 0;
};

struct PhiloxCounter {
  uint32_t word[4] = {0, 0, 0, 0};
};

/// Four random words.
HN_HD inline PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {
        {static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key.low, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key.high, static_cast<uint32_t>(a)}};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

/// The words of `ai.halfnote.Dropout` for the elements 4·group … 4·group + 3 (docs/operators.md).
HN_HD inline PhiloxCounter dropout_words(uint64_t seed, uint64_t step, uint32_t node,
                                         uint64_t group) {
  return philox4x32({{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                      static_cast<uint32_t>(step), node}},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace halfnote::math
