// Walking several strided tensors at once. The index space is cut into runs along its innermost
// dim, after dims that all tensors walk through as one have been merged; the body sees one offset a
// tensor and a length.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/shape.h"

namespace halfnote::cpu {

struct Runs {
  static constexpr size_t kMaxDims = 2 * kMaxRank;

  Shape dims;                  // merged; never empty
  std::vector<Shape> strides;  // one for each tensor: elements per step of a dim
  int64_t count = 0;           // product of the dims

  /// Elements that tensor `k` advances by within a run.
  int64_t step(size_t k) const { return strides[k].back(); }
};

/// Drops dims of 1 and merges neighbours. Each of `strides` has the rank of `dims`. Throws
/// Error(kModel) if more than kMaxDims dims stay.
Runs plan_runs(const Shape& dims, const std::vector<Shape>& strides);

/// Calls `body(position, offsets, length)` for each run of the row-major positions [begin, end):
/// `offsets[k]` is where tensor k stands. N is the number of tensors.
template <size_t N, class Body>
void walk_runs(const Runs& plan, int64_t begin, int64_t end, Body&& body) {
  const size_t rank = plan.dims.size();
  std::array<int64_t, Runs::kMaxDims> at{};
  std::array<int64_t, N> offsets{};
  for (int64_t d = static_cast<int64_t>(rank) - 1, rest = begin; d >= 0 && rest > 0; --d) {
    at[d] = rest % plan.dims[d];
    rest /= plan.dims[d];
    for (size_t k = 0; k < N; ++k) offsets[k] += at[d] * plan.strides[k][d];
  }
  const size_t inner = rank - 1;
  for (int64_t position = begin; position < end;) {
    const int64_t length = std::min(plan.dims[inner] - at[inner], end - position);
    body(position, offsets, length);
    position += length;
    at[inner] += length;
    for (size_t k = 0; k < N; ++k) offsets[k] += length * plan.strides[k][inner];
    for (size_t d = inner; d > 0 && at[d] == plan.dims[d]; --d) {
      at[d] = 0;
      ++at[d - 1];
      for (size_t k = 0; k < N; ++k) {
        offsets[k] += plan.strides[k][d - 1] - plan.dims[d] * plan.strides[k][d];
      }
    }
  }
}

}  // namespace halfnote::cpu
