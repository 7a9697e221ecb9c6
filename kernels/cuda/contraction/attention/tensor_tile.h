// Tiles of 16-bit attention in shared memory, and their products on tensor cores.
//
// A block has 64 rows, of queries or of keys, 16 a warp, and goes over columns, 32 at a time: those
// of the next turn are on their way while it computes. Scores and slopes stay in registers, and are
// rounded to 16 bits there for the second product; all sums are f32.
#pragma once

#include "kernels/cuda/contraction/attention/tile.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/tensor_cores.h"

namespace halfnote::HN_CUDA {

/// Of heads of up to kSize elements.
template <int kHead>
struct TensorShape {
  static constexpr int kSize = kHead, kRows = 64, kColumns = 32, kThreads = 128;
  static constexpr int kLd = kSize + 8;          // of 16-bit elements: 8 rows meet all banks
  static constexpr int kScoreLd = kColumns + 4;  // of numbers in f32
  static constexpr int kColumnBlocks = kColumns / 8, kSizeBlocks = kSize / 8;
  static constexpr int kBlocks = kSize <= 64 ? 3 : 2;  // of a multiprocessor at once
};

/// How the results leave by way of shared memory, in f32: store_rows(), store_columns().
template <class Shape>
struct StoredRows {
  static constexpr int kLd = Shape::kSize + 4;
};

/// A 16-bit operand: where it lies, and whether its rows are multiples of 16 bytes at such places.
template <class T>
struct TensorOperand {
  const T* data = nullptr;
  RowLayout layout;
  bool turned = false;  // stored as (elements, rows)
  bool by_packs = false;

  __device__ int64_t rows() const { return turned ? layout.size : layout.rows; }
  __device__ int size() const { return static_cast<int>(turned ? layout.rows : layout.size); }
};

/// Sets off for kCount rows from `row` on of the batch that begins at `at`, all threads of the
/// block; zeros behind the rows, and behind the elements up to a multiple of 16.
template <class Shape, int kCount, class T>
__device__ void bring_rows(const TensorOperand<T>& from, int64_t at, int64_t row, T* to) {
  constexpr int kPieces = Shape::kSize / 8, kAtOnce = Shape::kThreads / kPieces;
  static_assert(kCount % kAtOnce == 0);
  const int first = static_cast<int>(threadIdx.x) / kPieces;
  const int c = static_cast<int>(threadIdx.x) % kPieces * 8;
  const int size = from.size(), width = (size + 15) / 16 * 16;
  if (c >= width) return;
  const int64_t step = from.layout.step(), left = from.rows() - row - first;
  T* place = to + first * Shape::kLd + c;
  if (from.by_packs) {
    const T* lies = from.data + at + (row + first) * step + c;
    HN_UNROLL
    for (int r = 0; r < kCount; r += kAtOnce, place += kAtOnce * Shape::kLd) {
      if (r < left && c < size) {
        copy_ahead(place, lies + r * step);
      } else {
        store_packed(place, Packed<T, 8>{});
      }
    }
    return;
  }
  const int64_t of_row = from.turned ? 1 : step, of_element = from.turned ? step : 1;
  const T* lies = from.data + at + (row + first) * of_row + c * of_element;
  HN_IN_TURN
  for (int r = 0; r < kCount; r += kAtOnce, place += kAtOnce * Shape::kLd) {
    HN_IN_TURN
    for (int k = 0; k < 8; ++k) {
      const bool there = r < left && c + k < size;
      place[k] = there ? lies[r * of_row + k * of_element] : T{};
    }
  }
}

/// Where the lane's row of a tile begins for load_tiles(): of 16 rows and 16 elements the tiles
/// (rows 0-7, elements 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
template <int kLd, class T>
__device__ __forceinline__ const T* down_then_right(const T* tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return tile + (lane % 16) * kLd + lane / 16 * 8;
}
/// The same with the two in the middle by turns.
template <int kLd, class T>
__device__ __forceinline__ const T* right_then_down(const T* tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return tile + (lane % 8 + lane / 16 * 8) * kLd + lane / 8 % 2 * 8;
}

/// sums += A·Bᵀ of the warp's 16 rows and all columns; `depth`: elements of a row.
template <class Shape, class T>
__device__ __forceinline__ void add_scores(const T* rows, const T* columns, int depth,
                                           float (&sums)[Shape::kColumnBlocks][4]) {
  const T* own = down_then_right<Shape::kLd>(rows);
  const T* other = right_then_down<Shape::kLd>(columns);
  HN_UNROLL
  for (int k = 0; k < Shape::kSize; k += 16) {
    if (k >= depth) break;
    FourTiles a;
    load_tiles<false>(a, own + k);
    HN_UNROLL
    for (int block = 0; block < Shape::kColumnBlocks; block += 2) {
      FourTiles b;
      load_tiles<false>(b, other + block * 8 * Shape::kLd + k);
      add_product_of_tiles<T>(a, b, sums[block]);
      add_product_of_tiles<T>(a, b + 2, sums[block + 1]);
    }
  }
}

/// sums += A·B: A (16 rows, columns) in the registers of add_scores(), B (columns, elements).
template <class Shape, class T>
__device__ __forceinline__ void add_rows_by(const float (&numbers)[Shape::kColumnBlocks][4],
                                            const T* columns, int size,
                                            float (&sums)[Shape::kSizeBlocks][4]) {
  const T* other = down_then_right<Shape::kLd>(columns);
  HN_UNROLL
  for (int k = 0; k < Shape::kColumnBlocks; k += 2) {
    const FourTiles a = {two_of<T>(numbers[k][0], numbers[k][1]),
                         two_of<T>(numbers[k][2], numbers[k][3]),
                         two_of<T>(numbers[k + 1][0], numbers[k + 1][1]),
                         two_of<T>(numbers[k + 1][2], numbers[k + 1][3])};
    HN_UNROLL
    for (int block = 0; block < Shape::kSizeBlocks; block += 2) {
      if (block * 8 >= size) break;
      FourTiles b;
      load_tiles<true>(b, other + k * 8 * Shape::kLd + block * 8);
      add_product_of_tiles<T>(a, b, sums[block]);
      add_product_of_tiles<T>(a, b + 2, sums[block + 1]);
    }
  }
}

}  // namespace halfnote::HN_CUDA
