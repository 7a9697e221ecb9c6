// A matrix product of f32 whose sums are kept in f64 and rounded once: the accuracy of small
// contractions. A product of two f32 is exact in f64, so all that is lost is the rounding of the
// result, and a ReLU or a batch statistic behind it sees no noise of ours.
//
// Work is cut into tasks of at most kWideRows × kWideColumns results, k into blocks that stay in
// the caches. Each result is summed over k in order, whatever the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "kernels/cpu/fast/vector_math.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::fast {

/// The cost table of the rows with f64 sums: calls of up to so many multiply-adds are theirs, 4 to
/// 15 microseconds, hardly more than a call of the library takes to begin. Above it f32 is three to
/// eight times as fast: an MLP of 784-256-128-10 with 64 samples took three times as long with its
/// products in f64, and no model's losses were closer to those of f64 for it (docs/developer.md).
inline constexpr int64_t kWideWork = 1 << 17;

inline constexpr int64_t kWideRows = 64;
inline constexpr int64_t kWideDepth = 128;  // k at a time

/// Room of one task, on its stack.
struct WideTask {
  alignas(64) std::array<double, kWideDepth * kTallTile> left;
  alignas(64) std::array<double, kWideDepth * kWideColumns> right;
  alignas(64) std::array<double, kWideRows * kWideColumns> sums;
};

/// Zeros where tiles read or add, in the lines that are used: clearing the whole room, 100 KiB,
/// took 12 times as long as all else in a product of 8x8 by 8x1.
inline void clear_lines(double* lines, int64_t count, int64_t stride, int64_t from, int64_t to) {
  for (int64_t i = 0; i < count; ++i)
    std::fill(lines + i * stride + from, lines + i * stride + to, 0);
}

struct WideShape {
  int64_t batches = 1, m = 0, n = 0, k = 0;
};

/// Why a product is not for the rows with f64 sums; else empty. Tiles have whole rows, so that is
/// how multiply-adds are counted.
inline std::string wide_refusal(const WideShape& shape) {
  const int64_t rows = (shape.m + kTallTile - 1) / kTallTile * kTallTile;
  const int64_t work = shape.batches * rows * shape.n * shape.k;
  if (work <= kWideWork) return {};
  return std::to_string(work) + " multiply-adds, above the " + std::to_string(kWideWork) +
         " up to which sums are in f64";
}

/// Y[b] = A[b]·B[b]. `Source` gives the operands and takes the results:
///   left(b, row, k, count, to)          A[row, k + i] to to[i·kTallTile]
///   Right right(b, column, columns)     prepares reading columns of B, and then
///   Right::read(k, count, to)           B[k + i, column + j] to to[i·kWideColumns + j]
///   store(b, row, column, columns, sums)
template <class Source>
void wide_product(const WideShape& shape, int threads, const Source& source) {
  const int64_t across = (shape.n + kWideColumns - 1) / kWideColumns;
  const int64_t down = (shape.m + kWideRows - 1) / kWideRows;
  const VectorMath& math = vector_math();
  parallel_blocks(shape.batches * down * across, 1, threads, [&](int64_t task, int64_t) {
    WideTask room;
    const int64_t b = task / (down * across);
    const int64_t row = task / across % down * kWideRows, column = task % across * kWideColumns;
    const int64_t rows = std::min(kWideRows, shape.m - row);
    const int64_t columns = std::min(kWideColumns, shape.n - column);
    const auto right = source.right(b, column, columns);
    const int64_t tall = (rows + kTallTile - 1) / kTallTile * kTallTile;
    const int64_t wide = (columns + kWideTile - 1) / kWideTile * kWideTile;
    const int64_t deep = std::min(kWideDepth, shape.k);
    clear_lines(room.sums.data(), tall, kWideColumns, 0, wide);
    if (rows < tall) clear_lines(room.left.data(), deep, kTallTile, 0, kTallTile);
    clear_lines(room.right.data(), deep, kWideColumns, columns, wide);
    for (int64_t k = 0; k < shape.k; k += kWideDepth) {
      const int64_t depth = std::min(kWideDepth, shape.k - k);
      right.read(k, depth, room.right.data());
      for (int64_t r = 0; r < rows; r += kTallTile) {
        for (int64_t i = r; i < std::min(rows, r + kTallTile); ++i) {
          source.left(b, row + i, k, depth, room.left.data() + i - r);
        }
        for (int64_t c = 0; c < columns; c += kWideTile) {
          math.wide_tile(room.left.data(), room.right.data() + c, depth,
                         room.sums.data() + r * kWideColumns + c);
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      source.store(b, row + r, column, columns, room.sums.data() + r * kWideColumns);
    }
  });
}

}  // namespace halfnote::cpu::fast
