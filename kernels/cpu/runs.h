// Walking several strided tensors at once. The index space is cut into runs along its innermost
// dim, after dims that all tensors walk through as one have been merged; the body sees one offset a
// tensor and a length.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// Where a walk stands: the index in each dim, and the offset of each of N tensors.
template <size_t N>
struct RunPlace {
  std::array<int64_t, Runs::kMaxDims> at{};
  std::array<int64_t, N> offsets{};

  RunPlace(const Runs& plan, int64_t position) {
    for (size_t d = plan.dims.size(); d > 0 && position > 0; --d) {
      at[d - 1] = position % plan.dims[d - 1];
      position /= plan.dims[d - 1];
      for (size_t k = 0; k < N; ++k) offsets[k] += at[d - 1] * plan.strides[k][d - 1];
    }
  }

  /// Goes `steps` on along dim `d`, not beyond its end.
  void advance(const Runs& plan, size_t d, int64_t steps) {
    at[d] += steps;
    for (size_t k = 0; k < N; ++k) offsets[k] += steps * plan.strides[k][d];
    for (; d > 0 && at[d] == plan.dims[d]; --d) {
      at[d] = 0;
      ++at[d - 1];
      for (size_t k = 0; k < N; ++k) {
        offsets[k] += plan.strides[k][d - 1] - plan.dims[d] * plan.strides[k][d];
      }
    }
  }
};

/// Calls `body(position, offsets, length)` for each run of the row-major positions [begin, end):
/// `offsets[k]` is where tensor k stands. N is the number of tensors.
template <size_t N, class Body>
void walk_runs(const Runs& plan, int64_t begin, int64_t end, Body&& body) {
  const size_t inner = plan.dims.size() - 1;
  RunPlace<N> place(plan, begin);
  for (int64_t position = begin; position < end;) {
    const int64_t length = std::min(plan.dims[inner] - place.at[inner], end - position);
    body(position, place.offsets, length);
    position += length;
    place.advance(plan, inner, length);
  }
}

/// Whole runs that lie one after the other along the dim before the innermost one, or a part of one
/// run.
struct RunRows {
  int64_t position = 0;  // of the first element
  int64_t rows = 1;
  int64_t length = 0;  // of each
};

/// The same walk with many short runs in one call: `body(rows, offsets)`. Row `r` stands
/// r·strides[k][rank - 2] elements behind offsets[k].
template <size_t N, class Body>
void walk_rows(const Runs& plan, int64_t begin, int64_t end, Body&& body) {
  const size_t inner = plan.dims.size() - 1;
  RunPlace<N> place(plan, begin);
  for (int64_t position = begin; position < end;) {
    const int64_t left = end - position, whole = plan.dims[inner];
    const bool many = inner > 0 && place.at[inner] == 0 && left >= whole;
    const size_t d = many ? inner - 1 : inner;  // the dim that is walked along
    RunRows rows{position, 1, std::min(whole - place.at[inner], left)};
    if (many) rows = {position, std::min(plan.dims[d] - place.at[d], left / whole), whole};
    body(rows, place.offsets);
    position += rows.rows * rows.length;
    const int64_t steps = many ? rows.rows : rows.length;
    place.advance(plan, d, steps);
  }
}

/// Bytes of a piece that copy_piece() is for.
inline constexpr size_t kMostPieceBytes = 64;

/// Copies kHalf to 2·kHalf bytes as two vectors that may overlap.
template <size_t kHalf>
void copy_halves(const std::byte* from, size_t bytes, std::byte* to) {
  std::array<std::byte, kHalf> head, tail;
  std::memcpy(head.data(), from, kHalf);
  std::memcpy(tail.data(), from + (bytes - kHalf), kHalf);
  std::memcpy(to, head.data(), kHalf);
  std::memcpy(to + (bytes - kHalf), tail.data(), kHalf);
}

/// Copies up to kMostPieceBytes bytes, without a call: what a run of some elements is worth.
inline void copy_piece(const void* source, size_t bytes, void* target) {
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  if (bytes >= 32) return copy_halves<32>(from, bytes, to);
  if (bytes >= 16) return copy_halves<16>(from, bytes, to);
  if (bytes >= 8) return copy_halves<8>(from, bytes, to);
  if (bytes >= 4) return copy_halves<4>(from, bytes, to);
  for (size_t i = 0; i < bytes; ++i) to[i] = from[i];
}

}  // namespace halfnote::cpu
