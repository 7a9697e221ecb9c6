// The rank of a label among the scores of its line.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/support.h"
#include "kernels/math/rank.h"

namespace halfnote::cpu {

using math::kTopFive;

/// Scores between two looks at whether enough of them beat that of the label.
inline constexpr int64_t kRankPart = 256;

/// How many of `count` scores side by side, at most kRankPart, are not below `wanted`, or with
/// `or_equal` neither below it nor equal; NaN is neither. So math::beats is, on either side of the
/// label.
template <bool or_equal, class T>
int64_t count_not_below(const T* scores, int64_t count, Math<T> wanted) {
  Math<T> buffer[kRankPart];
  const Math<T>* numbers = load_block(scores, count, buffer);
  int32_t above = 0;
  for (int64_t k = 0; k < count; ++k) {
    const bool beaten = or_equal ? numbers[k] <= wanted : numbers[k] < wanted;
    above += beaten ? 0 : 1;
  }
  return above;
}

/// How many of a line's scores, `stride` apart, beat that of the label: higher ones, equal ones of
/// a class before it, and NaN. From `most` on it does not matter how many there are, and `most` is
/// given; that many beat a label outside the classes, and one whose score is NaN.
template <class T>
int64_t rank_of(const T* line, int64_t classes, int64_t stride, int64_t label, int64_t most) {
  if (label < 0 || label >= classes) return most;
  const Math<T> wanted = load(line[label * stride]);
  if (wanted != wanted) return most;
  int64_t rank = 0;
  for (int64_t c = 0; stride != 1 && c < classes && rank < most; ++c) {
    rank += math::beats<Math<T>>(load(line[c * stride]), c, wanted, label) ? 1 : 0;
  }
  for (int64_t c = 0; stride == 1 && c < classes && rank < most;) {
    const int64_t count = std::min(kRankPart, (c < label ? label : classes) - c);
    rank += c < label ? count_not_below<false>(line + c, count, wanted)
                      : count_not_below<true>(line + c, count, wanted);
    c += count;
  }
  return std::min(rank, most);
}

}  // namespace halfnote::cpu
