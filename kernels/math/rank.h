// Which scores of a line come before that of its label.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace halfnote::math {

/// A label is among the top five where fewer scores beat its own.
inline constexpr int64_t kTopFive = 5;

/// Does the score of class c beat the label's? A higher one does, an equal one of a class before
/// the label, and NaN.
template <class M>
HN_HD constexpr bool beats(M score, int64_t c, M wanted, int64_t label) {
  return !(score < wanted || (score == wanted && c >= label));
}

}  // namespace halfnote::math
