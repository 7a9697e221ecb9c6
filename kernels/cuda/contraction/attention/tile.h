// Tiles of attention in shared memory, and their products in registers.
//
// A warp owns 16 rows of a product; a lane holds, of every 8 columns, four numbers: of rows g and
// g + 8 (g = lane / 4) the columns 2·t and 2·t + 1 (t = lane % 4). That is how the tensor cores'
// mma.m16n8 lays out its result, so that it can take the place of the loops here.
#pragma once

#include "kernels/cuda/contraction/attention/parts.h"
#include "kernels/cuda/packs.h"

namespace halfnote::HN_CUDA {

/// The tiles of a head of up to kSize elements: kTile queries by kTile keys, what 99 KiB of shared
/// memory hold (that of every GPU since sm_80). They are in math precision, whatever the operands
/// are. Of the registers that a thread may have, 128 at most go to the sums of one product.
template <class M, int kSize>
struct TileShape {
  static constexpr int kTile = kSize * sizeof(M) <= 256 ? 64 : kSize * sizeof(M) <= 512 ? 32 : 16;
  static constexpr int kThreads = kTile * 2;  // a warp for 16 rows
  static constexpr int kHead = kSize;
  /// Elements of a row: rows 8 apart by lane, read four elements at a time, meet all banks.
  static constexpr int kLd = kSize + 4, kScoreLd = kTile + 4;
  static constexpr int kKeyBlocks = kTile / 8, kSizeBlocks = kSize / 8;  // of 8 columns
  /// Whether the sums of two products fit into registers.
  static constexpr bool kTwoSums = kSize * sizeof(M) <= 512;
  static_assert(kSizeBlocks * 4 * sizeof(M) <= 512 && kKeyBlocks * 4 <= 32);
};

/// Elements of the largest head: its sums are in registers.
template <class M>
inline constexpr int64_t kMostHead = sizeof(M) == 8 ? 128 : 256;

/// Calls `body.template operator()<kSize>()` for the heads of a plan.
template <class M, class Body>
Prepared for_head_size(const AttentionPlan& plan, Body&& body) {
  const int64_t size = std::max(plan.d, plan.e);
  if constexpr (sizeof(M) == 8) {  // for checks: one form is enough
    return body.template operator()<128>();
  } else {
    if (size <= 64) return body.template operator()<64>();
    return size <= 128 ? body.template operator()<128>() : body.template operator()<256>();
  }
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

template <int kCount, class M>
struct alignas(kCount * sizeof(M) < 16 ? kCount * sizeof(M) : 16) Numbers {
  M values[kCount];
};

/// kCount numbers by as few accesses as there can be.
template <int kCount, class M>
__device__ void load_numbers(const M* from, M (&to)[kCount]) {
  const auto numbers = *reinterpret_cast<const Numbers<kCount, M>*>(from);
  HN_UNROLL
  for (int k = 0; k < kCount; ++k) to[k] = numbers.values[k];
}

struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int index = static_cast<int>(threadIdx.x) % 32;
  int row = index / 4, column = index % 4 * 2;  // in its 16 rows; in each 8 columns
};

/// Four neighbours at a time, and many of these on their way at once: a block has few warps, which
/// would wait for each row.
template <class Shape, class T>
__device__ void load_packs_of_rows(const T* from, int64_t left, int64_t step, int size, float* to) {
  constexpr int kPack = 4, kLanes = Shape::kHead / kPack;
  constexpr int kTurns = Shape::kTile * kLanes / Shape::kThreads, kAtOnce = 8;
  static_assert(kTurns % kAtOnce == 0);
  HN_IN_TURN
  for (int turn = 0; turn < kTurns; turn += kAtOnce) {
    Packed<T, kPack> packs[kAtOnce];
    const int first = turn * Shape::kThreads + static_cast<int>(threadIdx.x);
    HN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = first + k * Shape::kThreads, r = at / kLanes, c = at % kLanes * kPack;
      packs[k] = {};
      if (r < left && c < size) packs[k] = load_packed<kPack>(from + r * step + c);
    }
    HN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = first + k * Shape::kThreads, r = at / kLanes, c = at % kLanes * kPack;
      Numbers<kPack, float> numbers;
      HN_UNROLL
      for (int x = 0; x < kPack; ++x) numbers.values[x] = load_number(packs[k].of[x]);
      if (c < size) *reinterpret_cast<Numbers<kPack, float>*>(to + r * Shape::kLd + c) = numbers;
    }
  }
}

/// Rows [row, row + kTile) of an operand, as far as there are such; zero behind its rows and, up to
/// a multiple of four elements, behind its columns.
template <class Shape, class M>
__device__ void load_rows(const Elements& from, const RowLayout& layout, int64_t batch, int64_t row,
                          M* to) {
  const Lane lane;
  const int64_t at = layout.at(batch, row);
  const int64_t left = layout.rows - row, step = layout.step();
  const int size = static_cast<int>(layout.size), width = (size + 3) / 4 * 4;
  if constexpr (std::is_same_v<M, float>) {
    const bool in_packs = size == width && step % 4 == 0 && from.lies_in_packs<4>(at);
    const auto packs = [&]<class T>(const T* first) {
      load_packs_of_rows<Shape>(first + at, left, step, size, to);
    };
    if (in_packs && from.dtype == DType::kF32) return packs(static_cast<const float*>(from.data));
    if (in_packs && from.dtype == DType::kF16) return packs(static_cast<const Half*>(from.data));
    if (in_packs) return packs(static_cast<const BFloat16*>(from.data));
  }
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

/// The four numbers of a lane in a block of 8 columns: rows `a` by columns `b`.
template <class M>
__device__ void add_outer(const M (&a)[2], const M (&b)[2], M (&sums)[4]) {
  HN_UNROLL
  for (int k = 0; k < 4; ++k) sums[k] = multiply_add(a[k / 2], b[k % 2], sums[k]);
}

/// sums += A·Bᵀ for the 16 rows of the warp: A (rows, depth), B (columns, depth), each kLd apart.
template <int kLd, int kBlocks, class M>
__device__ void add_product_of_rows(const M* a, const M* b, int depth, M (&sums)[kBlocks][4]) {
  const Lane lane;
  const M* own = a + (lane.warp * 16 + lane.row) * kLd;
  const M* other = b + lane.column * kLd;
  HN_IN_TURN
  for (int k = 0; k < depth; k += 4) {
    M above[4], below[4], left[4], right[4];
    load_numbers(own + k, above);
    load_numbers(own + 8 * kLd + k, below);
    HN_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      load_numbers(other + block * 8 * kLd + k, left);
      load_numbers(other + (block * 8 + 1) * kLd + k, right);
      HN_UNROLL
      for (int x = 0; x < 4; ++x) {
        add_outer({above[x], below[x]}, {left[x], right[x]}, sums[block]);
      }
    }
  }
}

/// sums += A·B for the 16 rows of the warp: A (rows, kTile) as the scores lie, B (kTile, columns).
/// Sums behind the columns, up to a multiple of 32, hold anything.
template <class Shape, int kBlocks, class M>
__device__ void add_product(const M* a, const M* b, int columns, M (&sums)[kBlocks][4]) {
  constexpr int kGroup = 4;  // blocks whose loads overlap
  static_assert(kBlocks % kGroup == 0);
  const Lane lane;
  const M* own = a + (lane.warp * 16 + lane.row) * Shape::kScoreLd;
  HN_IN_TURN
  for (int k = 0; k < Shape::kTile; k += 4) {
    M above[4], below[4];
    load_numbers(own + k, above);
    load_numbers(own + 8 * Shape::kScoreLd + k, below);
    HN_UNROLL
    for (int first = 0; first < kBlocks; first += kGroup) {
      if (first * 8 >= columns) break;
      HN_UNROLL
      for (int x = 0; x < 4; ++x) {
        const M* row = b + (k + x) * Shape::kLd + lane.column;
        HN_UNROLL
        for (int block = first; block < first + kGroup; ++block) {
          M pair[2];
          load_numbers(row + block * 8, pair);
          add_outer({above[x], below[x]}, pair, sums[block]);
        }
      }
    }
  }
}

/// The row in the tile of number k of a block of a lane, and its column.
__device__ inline int row_of(const Lane& lane, int k) {
  return lane.warp * 16 + lane.row + k / 2 * 8;
}
__device__ inline int column_of(const Lane& lane, int block, int k) {
  return block * 8 + lane.column + k % 2;
}

/// Calls `body(number, k, row, column)` for all numbers of a lane, with their places in the tile of
/// the block. The numbers stay in registers, so the body is there once for each: it must be short.
template <int kBlocks, class M, class Body>
__device__ void for_numbers(M (&numbers)[kBlocks][4], const Body& body) {
  const Lane lane;
  HN_UNROLL
  for (int block = 0; block < kBlocks; ++block) {
    HN_UNROLL
    for (int k = 0; k < 4; ++k) {
      body(numbers[block][k], block * 4 + k, row_of(lane, k), column_of(lane, block, k));
    }
  }
}

/// The places of a lane's numbers in one of its two rows: calls `body(at, row, column)` with the
/// numbering of for_numbers(). A loop, for what is long.
template <int kBlocks, class Body>
__device__ void for_half(int half, const Body& body) {
  const Lane lane;
  const int row = row_of(lane, half * 2);
  HN_IN_TURN
  for (int i = 0; i < kBlocks * 2; ++i) {
    body(i / 2 * 4 + half * 2 + i % 2, row, column_of(lane, i / 2, i % 2));
  }
}

/// A lane's numbers in shared memory, rows kLd apart.
template <int kLd, int kBlocks, class M>
__device__ void put_numbers(M (&numbers)[kBlocks][4], M* to) {
  for_numbers(numbers,
              [&](M number, int, int row, int column) { to[row * kLd + column] = number; });
}

/// Writes the 16 rows of the warp of rows [row, row + kTile) of a result, as far as there are such,
/// by way of the same rows of `tile`, which no other warp may still read.
template <class Shape, int kBlocks, class M>
__device__ void store_rows(M (&sums)[kBlocks][4], M* tile, const RowLayout& layout, int64_t batch,
                           int64_t row, const RealOutput& to) {
  const Lane lane;
  const int64_t at = layout.at(batch, row), left = layout.rows - row, step = layout.step();
  __syncwarp();
  put_numbers<Shape::kLd>(sums, tile);
  __syncwarp();
  HN_IN_TURN
  for (int r = lane.warp * 16; r < lane.warp * 16 + 16 && r < left; ++r) {
    HN_IN_TURN
    for (int c = lane.index; c < layout.size; c += 32) {
      to.write(at + r * step + c, tile[r * Shape::kLd + c]);
    }
  }
}

/// The same of a result that is stored as (D, N).
template <class Shape, int kBlocks, class M>
__device__ void store_columns(M (&sums)[kBlocks][4], M* tile, const RowLayout& layout,
                              int64_t batch, int64_t column, const RealOutput& to) {
  const Lane lane;
  const int64_t at = layout.at(batch, 0) + column, step = layout.step();
  const int r = lane.warp * 16 + lane.index % 16;
  __syncwarp();
  put_numbers<Shape::kLd>(sums, tile);
  __syncwarp();
  if (column + r >= layout.size) return;
  HN_IN_TURN
  for (int c = lane.index / 16; c < layout.rows; c += 2) {
    to.write(at + c * step + r, tile[r * Shape::kLd + c]);
  }
}

}  // namespace halfnote::HN_CUDA
