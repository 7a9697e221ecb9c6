// Tiles of attention in shared memory, and their products in registers.
//
// A warp owns 16 rows of a product; a lane holds, of every 8 columns, four numbers: of rows g and
// g + 8 (g = lane / 4) the columns 2·t and 2·t + 1 (t = lane % 4). That is how the tensor cores'
// mma.m16n8 lays out its result, so that it can take the place of the loops here.
#pragma once

#include "kernels/cuda/contraction/attention/parts.h"

namespace halfnote::HN_CUDA {

/// The tiles of a head of up to kSize elements: kTile queries by kTile keys, what 99 KiB of shared
/// memory hold (that of every GPU since sm_80), up to heads of 256 f32 or 128 f64. They are in math
/// precision, whatever the operands are.
template <class M, int kSize>
struct TileShape {
  static constexpr int kTile = kSize * sizeof(M) <= 256 ? 64 : kSize * sizeof(M) <= 512 ? 32 : 16;
  static constexpr int kThreads = kTile * 2;  // a warp for 16 rows
  /// Elements of a row: rows 8 apart by lane, read four elements at a time, meet all banks.
  static constexpr int kLd = kSize + 4, kScoreLd = kTile + 4;
  static constexpr int kKeyBlocks = kTile / 8, kSizeBlocks = kSize / 8;  // of 8 columns
};

/// Calls `body.template operator()<kSize>()` for the heads of a plan.
template <class Body>
Prepared for_head_size(const AttentionPlan& plan, Body&& body) {
  const int64_t size = std::max(plan.d, plan.e);
  if (size <= 64) return body.template operator()<64>();
  return size <= 128 ? body.template operator()<128>() : body.template operator()<256>();
}

/// Of one query: what the forward found, and Σ dY·Y.
template <class M>
struct QueryNumbers {
  M most = 0, sum = 1, delta = 0;
};

/// The shared memory of a block with kTiles tiles of operands.
template <class M, int kSize, int kTiles>
struct AttentionShared {
  using Shape = TileShape<M, kSize>;
  alignas(16) M scores[Shape::kTile * Shape::kScoreLd];
  alignas(16) M tiles[kTiles][Shape::kTile * Shape::kLd];
  QueryNumbers<M> query[Shape::kTile];
  KeptTile<Shape::kTile> kept;
};

template <class M>
struct alignas(16) FourNumbers {
  M values[4];
};

template <class M>
__device__ void load_four(const M* from, M (&to)[4]) {
  const auto four = *reinterpret_cast<const FourNumbers<M>*>(from);
  for (int k = 0; k < 4; ++k) to[k] = four.values[k];
}

struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int index = static_cast<int>(threadIdx.x) % 32;
  int row = index / 4, column = index % 4 * 2;  // in its 16 rows; in each 8 columns
};

/// Rows [row, row + kTile) of an operand, as far as there are such; zero behind its rows and, up to
/// a multiple of four elements, behind its columns.
template <class Shape, class M>
__device__ void load_rows(const Elements& from, const RowLayout& layout, int64_t batch, int64_t row,
                          M* to) {
  const Lane lane;
  const int64_t at = layout.at(batch, row);
  const int64_t left = layout.rows - row, step = layout.step();
  const int size = static_cast<int>(layout.size), width = (size + 3) / 4 * 4;
  for (int r = lane.warp; r < Shape::kTile; r += Shape::kThreads / 32) {
    for (int c = lane.index; c < width; c += 32) {
      to[r * Shape::kLd + c] = r < left && c < size ? from.load<M>(at + r * step + c) : M(0);
    }
  }
}

/// The same of keys that are stored as (D, N).
template <class Shape, class M>
__device__ void load_columns(const Elements& from, const RowLayout& layout, int64_t batch,
                             int64_t column, M* to) {
  const Lane lane;
  const int64_t at = layout.at(batch, 0) + column;
  const int64_t left = layout.size - column, step = layout.step();
  const int size = static_cast<int>(layout.rows), width = (size + 3) / 4 * 4;
  for (int c = lane.warp; c < width; c += Shape::kThreads / 32) {
    for (int r = lane.index; r < Shape::kTile; r += 32) {
      to[r * Shape::kLd + c] = r < left && c < size ? from.load<M>(at + c * step + r) : M(0);
    }
  }
}

template <class Shape, class M>
__device__ void load_keys(const DeviceAttention& p, const Elements& k, int64_t batch, int64_t key,
                          M* to) {
  if (p.trans_k) {
    load_columns<Shape>(k, p.k, batch, key, to);
  } else {
    load_rows<Shape>(k, p.k, batch, key, to);
  }
}

/// sums += A·Bᵀ for the 16 rows of the warp: A (rows, depth), B (columns, depth), each kLd apart.
template <int kLd, int kBlocks, class M>
__device__ void add_product_of_rows(const M* a, const M* b, int depth, M (&sums)[kBlocks][4]) {
  const Lane lane;
  const M* own = a + (lane.warp * 16 + lane.row) * kLd;
  const M* other = b + lane.column * kLd;
  for (int k = 0; k < depth; k += 4) {
    M above[4], below[4], left[4], right[4];
    load_four(own + k, above);
    load_four(own + 8 * kLd + k, below);
    HN_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      load_four(other + block * 8 * kLd + k, left);
      load_four(other + (block * 8 + 1) * kLd + k, right);
      for (int x = 0; x < 4; ++x) {
        sums[block][0] = multiply_add(above[x], left[x], sums[block][0]);
        sums[block][1] = multiply_add(above[x], right[x], sums[block][1]);
        sums[block][2] = multiply_add(below[x], left[x], sums[block][2]);
        sums[block][3] = multiply_add(below[x], right[x], sums[block][3]);
      }
    }
  }
}

/// sums += A·B for the 16 rows of the warp: A (rows, kTile) as the scores lie, B (kTile, columns).
template <class Shape, int kBlocks, class M>
__device__ void add_product(const M* a, const M* b, int columns, M (&sums)[kBlocks][4]) {
  const Lane lane;
  const M* own = a + (lane.warp * 16 + lane.row) * Shape::kScoreLd;
  for (int k = 0; k < Shape::kTile; k += 4) {
    M above[4], below[4];
    load_four(own + k, above);
    load_four(own + 8 * Shape::kScoreLd + k, below);
    for (int x = 0; x < 4; ++x) {
      const M* row = b + (k + x) * Shape::kLd + lane.column;
      HN_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        if (block * 8 >= columns) break;
        const M left = row[block * 8], right = row[block * 8 + 1];
        sums[block][0] = multiply_add(above[x], left, sums[block][0]);
        sums[block][1] = multiply_add(above[x], right, sums[block][1]);
        sums[block][2] = multiply_add(below[x], left, sums[block][2]);
        sums[block][3] = multiply_add(below[x], right, sums[block][3]);
      }
    }
  }
}

/// Calls `body(block, k, row, column)` for all numbers [block][k] of a lane, with their places in
/// the tile of the block.
template <int kBlocks, class Body>
__device__ void for_places(const Body& body) {
  const Lane lane;
  HN_UNROLL
  for (int block = 0; block < kBlocks; ++block) {
    for (int k = 0; k < 4; ++k) {
      body(block, k, lane.warp * 16 + lane.row + k / 2 * 8, block * 8 + lane.column + k % 2);
    }
  }
}

template <int kBlocks, class M, class Body>
__device__ void for_numbers(M (&sums)[kBlocks][4], const Body& body) {
  for_places<kBlocks>(
      [&](int block, int k, int row, int column) { body(sums[block][k], row, column); });
}

/// Writes rows [row, row + kTile) of a result, as far as there are such.
template <int kBlocks, class M>
__device__ void store_rows(M (&sums)[kBlocks][4], const RowLayout& layout, int64_t batch,
                           int64_t row, const RealOutput& to) {
  const int64_t at = layout.at(batch, row), left = layout.rows - row, step = layout.step();
  for_numbers(sums, [&](M value, int r, int c) {
    if (r < left && c < layout.size) to.write(at + r * step + c, static_cast<double>(value));
  });
}

/// The same of a result that is stored as (D, N).
template <int kBlocks, class M>
__device__ void store_columns(M (&sums)[kBlocks][4], const RowLayout& layout, int64_t batch,
                              int64_t column, const RealOutput& to) {
  const int64_t at = layout.at(batch, 0) + column, step = layout.step();
  for_numbers(sums, [&](M value, int r, int c) {
    if (column + r < layout.size && c < layout.rows) {
      to.write(at + c * step + r, static_cast<double>(value));
    }
  });
}

}  // namespace halfnote::HN_CUDA
