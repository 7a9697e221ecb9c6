#include "runtime/train/data/shuffle.h"

#include "kernels/math/philox.h"

namespace halfnote {
namespace {

// Four rounds are a permutation that is hard to tell from random for large halves; small data sets
// have halves of a few bits, where more rounds mix better. Eight cost under a microsecond.
constexpr uint32_t kRounds = 8;
// Keeps the words apart from those of dropout, which has the same seed.
constexpr uint32_t kDomain = 0x73687566;  // "shuf"

}  // namespace

Shuffle::Shuffle(int64_t samples, uint64_t seed, int64_t epoch)
    : samples_(static_cast<uint64_t>(samples)), seed_(seed), epoch_(static_cast<uint64_t>(epoch)) {
  half_bits_ = 1;
  while ((uint64_t{1} << (2 * half_bits_)) < samples_) ++half_bits_;
}

uint64_t Shuffle::encrypt(uint64_t value) const {
  const uint32_t mask = (uint32_t{1} << half_bits_) - 1;
  auto left = static_cast<uint32_t>(value >> half_bits_);
  auto right = static_cast<uint32_t>(value) & mask;
  const math::PhiloxKey key = {static_cast<uint32_t>(seed_),
                               static_cast<uint32_t>(seed_ >> 32) ^ kDomain};
  for (uint32_t round = 0; round < kRounds; ++round) {
    const math::PhiloxCounter words = math::philox4x32(
        {{right, round, static_cast<uint32_t>(epoch_), static_cast<uint32_t>(epoch_ >> 32)}}, key);
    const uint32_t mixed = left ^ (words.word[0] & mask);
    left = right;
    right = mixed;
  }
  return uint64_t{left} << half_bits_ | right;
}

int64_t Shuffle::operator[](int64_t place) const {
  uint64_t value = encrypt(static_cast<uint64_t>(place));
  while (value >= samples_) value = encrypt(value);
  return static_cast<int64_t>(value);
}

}  // namespace halfnote
