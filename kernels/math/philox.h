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

/// The upper 32 bits of a product.
HN_HD inline uint32_t high_half(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __umulhi(a, b);  // the product of 64 bits takes more instructions
#else
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
#endif
}

/// Four random words.
HN_HD inline PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    constexpr uint32_t kA = 0xD2511F53u, kB = 0xCD9E8D57u;
    const uint32_t low = kA * counter.word[0], high = high_half(kA, counter.word[0]);
    counter = {{high_half(kB, counter.word[2]) ^ counter.word[1] ^ key.low, kB * counter.word[2],
                high ^ counter.word[3] ^ key.high, low}};
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
