#include "kernels/cpu/tiled/product.h"

#include <algorithm>

#include "base/dtype.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::tiled {

namespace {

constexpr int64_t kBlockColumns = 384;          // of B: with kDepth lanes 576 KiB
constexpr int64_t kBlockRows = 36 * kTileRows;  // if their sums need room of their own
constexpr int64_t kLeftFloats = std::max(kTileRows * kRowStep, kDepth* kLaneStep);
constexpr int64_t kSumFloats = (kTileRows + 2) * kTileColumns;  // a whole number of cache lines

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// [0, total) in `parts` that differ by one at the most; the border before part `index`.
int64_t border(int64_t total, int64_t parts, int64_t index) {
  return total / parts * index + std::min(index, total % parts);
}

struct Grid {
  int64_t down = 1, across = 1;
};

/// The grid of regions with the least work in its largest; packing counts as well.
Grid best_grid(int64_t m, int64_t n, int64_t threads) {
  constexpr int64_t kPacking = 8;  // an element packed costs as much as so many multiply-adds
  Grid best;
  int64_t least = INT64_MAX;
  for (int64_t down = 1; down <= threads; ++down) {
    const Grid grid{std::min(down, ceil_div(m, kTileRows)),
                    std::min(threads / down, ceil_div(n, kTileColumns))};
    const int64_t rows = ceil_div(ceil_div(m, kTileRows), grid.down) * kTileRows;
    const int64_t columns = ceil_div(ceil_div(n, kTileColumns), grid.across) * kTileColumns;
    const int64_t cost =
        rows * columns + kPacking * (rows * ceil_div(columns, kBlockColumns) + columns);
    if (cost < least) {
      least = cost;
      best = grid;
    }
  }
  return best;
}

/// A part of an operand on its way into the caches.
void fetch(const Part& part, int64_t element_bytes) {
  constexpr int64_t kLine = 64;
  const bool by_line = part.k_step == 1;
  const int64_t runs = by_line ? part.lines : part.depth;
  const int64_t run_step = (by_line ? part.line_step : part.k_step) * element_bytes;
  const int64_t run_bytes = (by_line ? part.depth : part.lines) * element_bytes;
  const std::byte* from = part.from;
  for (int64_t run = 0; run < runs; ++run, from += run_step) {
    for (int64_t at = 0; at < run_bytes; at += kLine) __builtin_prefetch(from + at);
    __builtin_prefetch(from + run_bytes - 1);
  }
}

/// What a tile will be added to or written to, on its way while the tile is computed.
void fetch(const Finish& finish) {
  const bool in_y = finish.first && finish.last;
  const auto* from = in_y ? finish.y : reinterpret_cast<const std::byte*>(finish.partial);
  const int64_t step = in_y ? finish.y_step * static_cast<int64_t>(size_of(finish.y_type))
                            : finish.partial_step * static_cast<int64_t>(sizeof(float));
  constexpr int64_t kLine = 64;
  for (int64_t row = 0; row < finish.rows; ++row) {
    __builtin_prefetch(from + row * step, 1);
    __builtin_prefetch(from + row * step + kLine, 1);
  }
}

/// Results [row, row + rows) × [column, column + columns), and a block of k.
struct Block {
  int64_t row = 0, rows = 0, column = 0, columns = 0, k = 0, depth = 0;
};

/// A strip of results, one tile high; `top` counts from the first row of its block.
struct Strip {
  int64_t top = 0, rows = 0;
};

Strip strip_of(const Block& block, int64_t index) {
  const int64_t strips = ceil_div(block.rows, kTileRows);
  const int64_t top = border(block.rows, strips, index);
  return {top, border(block.rows, strips, index + 1) - top};
}

}  // namespace

const Loops* find_loops(DType operands) {
#if defined(__x86_64__)
  if (vector_isa() != VectorIsa::kAvx512) return nullptr;
  switch (operands) {
    case DType::kF32:
      return &kAvx512F32;
    case DType::kF16:
      return &kAvx512F16;
    case DType::kBF16:
      return __builtin_cpu_supports("avx512bf16") ? &kAvx512BF16 : &kAvx512BF16AsF32;
    default:
      return nullptr;
  }
#else
  return nullptr;
#endif
}

Product::Product(const ProductShape& shape, DType operands, DType result, const Loops& loops,
                 int threads)
    : shape_(shape),
      element_bytes_(static_cast<int64_t>(size_of(operands))),
      sums_in_result_(result == DType::kF32),
      loops_(loops) {
  const int64_t lanes = ceil_div(shape.k, loops.k_of_lane);
  const int64_t blocks = ceil_div(lanes, kDepth);
  depth_ = ceil_div(ceil_div(lanes, blocks), 16) * 16 * loops.k_of_lane;
  const Grid grid = best_grid(shape.m, shape.n, threads);
  const int64_t tiles_down = ceil_div(shape.m, kTileRows);
  const int64_t tiles_across = ceil_div(shape.n, kTileColumns);
  int64_t most_rows = 0, most_columns = 0;
  for (int64_t i = 0; i < grid.down; ++i) {
    const int64_t top = std::min(shape.m, border(tiles_down, grid.down, i) * kTileRows);
    const int64_t bottom = std::min(shape.m, border(tiles_down, grid.down, i + 1) * kTileRows);
    for (int64_t j = 0; j < grid.across; ++j) {
      const int64_t left = std::min(shape.n, border(tiles_across, grid.across, j) * kTileColumns);
      const int64_t right =
          std::min(shape.n, border(tiles_across, grid.across, j + 1) * kTileColumns);
      regions_.push_back({top, bottom - top, left, right - left});
      most_columns = std::max(most_columns, right - left);
    }
    most_rows = std::max(most_rows, bottom - top);
  }
  const bool own_sums = !sums_in_result_ && shape.k > depth_;
  block_rows_ = own_sums ? std::min(most_rows, kBlockRows) : most_rows;
  const int64_t block_columns =
      ceil_div(std::min(most_columns, kBlockColumns), kTileColumns) * kTileColumns;
  int64_t floats = kSumFloats + kLeftFloats;
  floats += block_columns * ceil_div(depth_, loops.k_of_lane);
  if (own_sums) floats += block_rows_ * block_columns;
  partial_step_ = block_columns;
  slot_bytes_ = static_cast<size_t>(ceil_div(floats, 16) * 16) * sizeof(float);
}

/// One region of one run, and its part of the workspace.
struct Product::Task {
  const Product& product;
  const Region& region;
  const std::byte* a;
  const std::byte* b;
  const ProductResult& result;
  float* sums;     // of a tile
  float* left;     // panel of A
  float* right;    // panels of B
  float* partial;  // sums between two blocks of k, unless they are in the result

  Task(const Product& owner, const Region& where, const std::byte* left_operand,
       const std::byte* right_operand, const ProductResult& to, std::byte* room)
      : product(owner), region(where), a(left_operand), b(right_operand), result(to) {
    sums = reinterpret_cast<float*>(room);
    left = sums + kSumFloats;
    right = left + kLeftFloats;
    const int64_t columns =
        ceil_div(std::min(region.columns, kBlockColumns), kTileColumns) * kTileColumns;
    partial = right + columns * lanes(product.depth_);
  }

  int64_t lanes(int64_t depth) const { return ceil_div(depth, product.loops_.k_of_lane); }
  /// From one panel of B to the next: packing writes whole groups of 16 lanes.
  int64_t panel_floats(int64_t depth) const {
    return ceil_div(lanes(depth), 16) * 16 * kTileColumns;
  }

  void run() const {
    Block block;
    for (int64_t j = 0; j < region.columns; j += kBlockColumns) {
      block.column = region.column + j;
      block.columns = std::min(kBlockColumns, region.columns - j);
      for (int64_t i = 0; i < region.rows; i += product.block_rows_) {
        block.row = region.row + i;
        block.rows = std::min(product.block_rows_, region.rows - i);
        for (int64_t k = 0; k < product.shape_.k; k += product.depth_) {
          block.k = k;
          block.depth = std::min(product.depth_, product.shape_.k - k);
          multiply(block);
        }
      }
    }
  }

  void multiply(const Block& block) const {
    pack_right(block);
    const int64_t strips = ceil_div(block.rows, kTileRows);
    for (int64_t i = 0; i < strips; ++i) {
      const Strip strip = strip_of(block, i);
      product.loops_.pack_left(share_of(block, strip, 0, 1), left);
      multiply(block, strip, i + 1 < strips ? strip_of(block, i + 1) : Strip{});
    }
  }

  void pack_right(const Block& block) const {
    const ProductShape& shape = product.shape_;
    float* panel = right;
    for (int64_t j = 0; j < block.columns; j += kTileColumns) {
      const int64_t at = (block.column + j) * shape.b_column_step + block.k * shape.b_k_step;
      product.loops_.pack_right(
          {b + at * product.element_bytes_, shape.b_column_step, shape.b_k_step,
           std::min(kTileColumns, block.columns - j), block.depth},
          panel);
      panel += panel_floats(block.depth);
    }
  }

  /// Share `index` of `shares` equal ones: of its rows, or of its lanes if those are contiguous.
  Part share_of(const Block& block, const Strip& strip, int64_t index, int64_t shares) const {
    const ProductShape& shape = product.shape_;
    const bool by_row = shape.a_k_step == 1;
    const int64_t total = by_row ? strip.rows : lanes(block.depth);
    const int64_t begin = border(total, shares, index), end = border(total, shares, index + 1);
    const int64_t first_k = by_row ? 0 : begin * product.loops_.k_of_lane;
    const int64_t last_k =
        by_row ? block.depth : std::min(block.depth, end * product.loops_.k_of_lane);
    const int64_t row = block.row + strip.top + (by_row ? begin : 0);
    const int64_t at = row * shape.a_row_step + (block.k + first_k) * shape.a_k_step;
    return {a + at * product.element_bytes_, shape.a_row_step, shape.a_k_step,
            by_row ? end - begin : strip.rows, last_k - first_k};
  }

  /// One strip; the next one of A is fetched between its tiles.
  void multiply(const Block& block, const Strip& strip, const Strip& next) const {
    const LeftForm form = product.shape_.a_k_step == 1 ? LeftForm::kRows : LeftForm::kLanes;
    const Loops::Tile tile =
        product.loops_.tile[static_cast<size_t>(form)][static_cast<size_t>(strip.rows)];
    const int64_t tiles = ceil_div(block.columns, kTileColumns);
    const float* columns = right;
    Finish finish = finish_of(block, strip);
    for (int64_t j = 0; j < tiles; ++j) {
      place(block, strip, j * kTileColumns, finish);
      fetch(finish);
      if (next.rows > 0) fetch(share_of(block, next, j, tiles), product.element_bytes_);
      tile(left, columns, lanes(block.depth), sums);
      product.loops_.finish(sums, finish);
      columns += panel_floats(block.depth);
    }
  }

  /// What all tiles of a strip have in common.
  Finish finish_of(const Block& block, const Strip& strip) const {
    Finish finish;
    finish.rows = strip.rows;
    finish.first = block.k == 0;
    finish.last = block.k + block.depth == product.shape_.k;
    finish.alpha = result.alpha;
    finish.c_type = result.c_type;
    finish.c_row = result.c_row;
    finish.c_column = result.c_column;
    finish.y_type = result.y_type;
    finish.y_step = result.y_step;
    finish.partial_step = product.sums_in_result_ ? result.y_step : product.partial_step_;
    return finish;
  }

  void place(const Block& block, const Strip& strip, int64_t left_column, Finish& finish) const {
    const int64_t row = block.row + strip.top, column = block.column + left_column;
    finish.columns = std::min(kTileColumns, block.columns - left_column);
    const int64_t y = row * result.y_step + column;
    finish.y = result.y + y * static_cast<int64_t>(size_of(result.y_type));
    finish.partial = product.sums_in_result_
                         ? reinterpret_cast<float*>(result.y) + y
                         : partial + strip.top * product.partial_step_ + left_column;
    if (result.c == nullptr) return;
    const int64_t c = row * result.c_row + column * result.c_column;
    finish.c = result.c + c * static_cast<int64_t>(size_of(result.c_type));
  }
};

void Product::run(const std::byte* a, const std::byte* b, const ProductResult& result,
                  std::byte* workspace) const {
  const auto count = static_cast<int64_t>(regions_.size());
  parallel_blocks(count, 1, static_cast<int>(count), [&](int64_t begin, int64_t) {
    const auto index = static_cast<size_t>(begin);
    Task(*this, regions_[index], a, b, result, workspace + index * slot_bytes_).run();
  });
}

}  // namespace halfnote::cpu::tiled
