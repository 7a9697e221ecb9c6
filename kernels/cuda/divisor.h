// Division by a number that is known when a kernel is planned.
#pragma once

#include "kernels/math/host_device.h"

namespace halfnote {

/// A divisor ≥ 1. Positions below 2^31 are divided by a multiplication, an addition and a shift,
/// since a GPU's own division of 64 bits takes some hundred instructions; greater ones by that.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t value) : value_(value > 1 ? value : 1) {
    constexpr int64_t kLimit = int64_t{1} << 31;
    if (value_ > kLimit) {  // (0 + n) >> 31: zero for every n below 2^31
      shift_ = 31;
      return;
    }
    // The quotient is (⌊n·factor / 2^32⌋ + n) / 2^shift with the smallest 2^shift ≥ value
    // (Granlund and Montgomery, 1994).
    while ((int64_t{1} << shift_) < value_) ++shift_;
    const uint64_t rest = (uint64_t{1} << shift_) - static_cast<uint64_t>(value_);
    factor_ = static_cast<uint32_t>((rest << 32) / static_cast<uint64_t>(value_) + 1);
  }

  HN_HD int64_t value() const { return value_; }
  /// n / value, for n ≥ 0.
  HN_HD int64_t quotient(int64_t n) const {
    return n >= int64_t{1} << 31 ? n / value_ : small_quotient(static_cast<uint32_t>(n));
  }
  /// The same for n < 2^31, without a branch.
  HN_HD uint32_t small_quotient(uint32_t n) const {
    const auto high = static_cast<uint32_t>((uint64_t{n} * factor_) >> 32);
    return (high + n) >> shift_;
  }
  /// n % value
  HN_HD int64_t remainder(int64_t n) const { return n - quotient(n) * value_; }

 private:
  int64_t value_ = 1;
  uint32_t factor_ = 1, shift_ = 0;
};

}  // namespace halfnote
