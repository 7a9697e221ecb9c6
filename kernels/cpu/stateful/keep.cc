// The loops for any CPU of the architecture, and the choice among them.
#include "kernels/cpu/stateful/keep.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/best_loops.h"
#include "kernels/math/philox.h"

namespace halfnote::cpu {
namespace {

constexpr int64_t kGroupsAWord = 16;

/// The bits of group `group`: the lowest four.
uint64_t bits_of_group(const KeepStream& stream, uint64_t group) {
  const auto words = math::dropout_words(stream.seed, stream.step, stream.node, group);
  uint64_t bits = 0;
  for (int k = 0; k < 4; ++k) bits |= uint64_t{words.word[k] >= stream.threshold} << k;
  return bits;
}

void bits_of_groups(const KeepStream& stream, uint64_t group, int64_t words, uint64_t* bits) {
  for (int64_t w = 0; w < words; ++w) {
    bits[w] = 0;
    for (int g = 0; g < kGroupsAWord; ++g) bits[w] |= bits_of_group(stream, group++) << 4 * g;
  }
}

void drop(const float* x, int64_t n, const uint64_t* bits, float factor, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = (bits[i / 64] >> i % 64 & 1) != 0 ? x[i] * factor : 0.0f;
}

}  // namespace

const KeepLoops kBaselineKeep = {"baseline", bits_of_groups, drop};

const KeepLoops& keep_loops() { return *best_loops<kAvx512Keep, kAvx2Keep>(&kBaselineKeep); }

uint64_t keep_threshold(float ratio) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(ratio) * 0x1p32));
}

float keep_factor(float ratio) { return ratio < 1 ? 1 / (1 - ratio) : 0.0f; }

void keep_bits(const KeepStream& stream, uint64_t first, int64_t words, uint64_t* bits) {
  if (stream.threshold >> 32 != 0) {
    std::fill_n(bits, words, uint64_t{0});
    return;
  }
  keep_loops().bits_of_groups(stream, first / 4, words, bits);
  const unsigned skipped = first % 4;
  if (skipped == 0 || words == 0) return;
  // The groups of a word begin before its elements: the last ones stand in the next group.
  const uint64_t behind =
      bits_of_group(stream, first / 4 + static_cast<uint64_t>(words * kGroupsAWord));
  for (int64_t w = 0; w < words; ++w) {
    const uint64_t next = w + 1 < words ? bits[w + 1] : behind;
    bits[w] = bits[w] >> skipped | next << (64 - skipped);
  }
}

}  // namespace halfnote::cpu
