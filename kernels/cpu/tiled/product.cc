#include "kernels/cpu/tiled/product.h"

#include <algorithm>

#include "base/dtype.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::tiled {

namespace {

constexpr int64_t kBlockFloats = kDepth * 384;  // of B: 576 KiB, a bit more than half the L2 cache
// Rows whose sums stay in a cache from one block of k to the next: in room of their own, in Y.
constexpr int64_t kOwnRows = 36 * kTileRows, kResultRows = 108 * kTileRows;
constexpr int64_t kLeftFloats = std::max(kTileRows * kRowStep, kMostDepth* kLaneStep);
constexpr int64_t kSumFloats = (kTileRows + 2) * kTileColumns;  // a whole number of cache lines

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// [0, total) in `parts` that differ by one at the most; the border before part `index`.
int64_t border(int64_t total, int64_t parts, int64_t index) {
  return total / parts * index + std::min(index, total % parts);
}

/// The size of the fewest equal parts of `total` that are at most `most`; whole `unit`s.
int64_t even_part(int64_t total, int64_t most, int64_t unit) {
  return ceil_div(ceil_div(total, ceil_div(total, most)), unit) * unit;
}

struct Grid {
  int64_t down = 1, across = 1;
};

/// The grid of regions with the least work in its largest; packing counts as well.
Grid best_grid(int64_t m, int64_t n, int64_t threads, int64_t block_columns) {
  constexpr int64_t kPacking = 8;  // an element packed costs as much as so many multiply-adds
  Grid best;
  int64_t least = INT64_MAX;
  for (int64_t down = 1; down <= threads; ++down) {
    const Grid grid{std::min(down, ceil_div(m, kTileRows)),
                    std::min(threads / down, ceil_div(n, kTileColumns))};
    const int64_t rows = ceil_div(ceil_div(m, kTileRows), grid.down) * kTileRows;
    const int64_t columns = ceil_div(ceil_div(n, kTileColumns), grid.across) * kTileColumns;
    const int64_t cost =
        rows * columns + kPacking * (rows * ceil_div(columns, block_columns) + columns);
    if (cost < least) {
      least = cost;
      best = grid;
    }
  }
  return best;
}

void add_stretch(Soon& soon, const std::byte* from, int64_t step, int64_t runs, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const auto past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(from) % kLine);
  // Runs that begin at other places of a line may touch one more.
  const int64_t before = step % kLine == 0 ? past_line : kLine - 1;
  const Stretch stretch{from - past_line, step, runs, ceil_div(before + bytes, kLine)};
  soon.stretches[soon.count++] = stretch;
  soon.lines += stretch.runs * stretch.lines;
}

void add_stretch(Soon& soon, const Part& part, int64_t element_bytes) {
  const bool by_line = part.k_step == 1;
  if (part.lines == 0 || part.depth == 0) return;
  add_stretch(soon, part.from, (by_line ? part.line_step : part.k_step) * element_bytes,
              by_line ? part.lines : part.depth,
              (by_line ? part.depth : part.lines) * element_bytes);
}

/// What a tile will be added to or written to.
void add_stretch(Soon& soon, const Finish& finish) {
  const bool in_y = finish.first && finish.last;
  const auto* from = in_y ? finish.y : reinterpret_cast<const std::byte*>(finish.partial);
  const auto bytes = static_cast<int64_t>(in_y ? size_of(finish.y_type) : sizeof(float));
  add_stretch(soon, from, (in_y ? finish.y_step : finish.partial_step) * bytes, finish.rows,
              finish.columns * bytes);
}

/// Results [row, row + rows) × [column, column + columns), and a block of k.
struct Block {
  int64_t row = 0, rows = 0, column = 0, columns = 0, k = 0, depth = 0;
};

/// A strip of a block, one tile high; `top` counts from the first row of the block. One without
/// rows is none.
struct Strip {
  Block block;
  int64_t index = 0, top = 0, rows = 0;
};

Strip strip_of(const Block& block, int64_t index) {
  const int64_t strips = ceil_div(block.rows, kTileRows);
  const int64_t top = border(block.rows, strips, index);
  return {block, index, top, border(block.rows, strips, index + 1) - top};
}

/// Rows a multiple of 4 KiB apart would fall on the same lines of the cache.
bool reads_in_place(const ProductShape& shape, int64_t element_bytes, const Loops& loops) {
  constexpr int64_t kAliased = 4096;
  return loops.reads_stored && shape.a_k_step == 1 && shape.k % loops.k_of_lane == 0 &&
         shape.a_row_step % loops.k_of_lane == 0 &&
         shape.a_row_step * element_bytes % kAliased != 0;
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
      return bf16_dots() == Bf16Dots::kFast ? &kAvx512BF16 : &kAvx512BF16AsF32;
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
      left_in_place_(reads_in_place(shape, element_bytes_, loops)),
      loops_(loops) {
  const int64_t lanes = ceil_div(shape.k, loops.k_of_lane);
  const bool whole = lanes <= (sums_in_result_ ? 2 * kDepth : kMostDepth);
  const int64_t blocks = whole ? 1 : ceil_div(lanes, kDepth);
  depth_ = ceil_div(ceil_div(lanes, blocks), 16) * 16 * loops.k_of_lane;
  const int64_t depth_lanes = ceil_div(depth_, loops.k_of_lane);
  block_columns_ = kBlockFloats / depth_lanes / kTileColumns * kTileColumns;
  const Grid grid = best_grid(shape.m, shape.n, threads, block_columns_);
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
  const bool own_sums = !sums_in_result_ && !whole;
  block_rows_ =
      whole ? most_rows : even_part(most_rows, own_sums ? kOwnRows : kResultRows, kTileRows);
  block_columns_ = even_part(most_columns, block_columns_, kTileColumns);
  int64_t floats = kSumFloats + 2 * kLeftFloats + block_columns_ * depth_lanes;
  if (own_sums) floats += block_rows_ * block_columns_;
  slot_bytes_ = static_cast<size_t>(ceil_div(floats, 16) * 16) * sizeof(float);
}

/// One region of one run, and its part of the workspace.
struct Product::Task {
  const Product& product;
  const Region& region;
  const std::byte* a;
  const std::byte* b;
  const ProductResult& result;
  float* sums;       // of a tile
  float* left;       // panel of A
  float* next_left;  // of the next strip, packed while this one is multiplied
  float* right;      // panels of B
  float* partial;    // sums between two blocks of k, unless they are in the result

  Task(const Product& owner, const Region& where, const std::byte* left_operand,
       const std::byte* right_operand, const ProductResult& to, std::byte* room)
      : product(owner), region(where), a(left_operand), b(right_operand), result(to) {
    sums = reinterpret_cast<float*>(room);
    left = sums + kSumFloats;
    next_left = left + kLeftFloats;
    right = next_left + kLeftFloats;
    partial = right + product.block_columns_ * lanes(product.depth_);
  }

  int64_t lanes(int64_t depth) const { return ceil_div(depth, product.loops_.k_of_lane); }
  /// From one panel of B to the next: packing writes whole groups of 16 lanes.
  int64_t panel_floats(int64_t depth) const {
    return ceil_div(lanes(depth), 16) * 16 * kTileColumns;
  }

  void run() {
    Strip strip = strip_of(block_at(0, 0, 0), 0);
    if (!product.left_in_place_) pack_left(strip, 0, share_size(strip, 1), left);
    while (strip.rows > 0) {
      const Strip next = strip_after(strip);
      multiply(strip, next);
      std::swap(left, next_left);
      strip = next;
    }
  }

  /// The block whose first result and first k these are, counted from the region's.
  Block block_at(int64_t i, int64_t j, int64_t k) const {
    return {region.row + i,
            std::min(product.block_rows_, region.rows - i),
            region.column + j,
            std::min(product.block_columns_, region.columns - j),
            k,
            std::min(product.depth_, product.shape_.k - k)};
  }

  /// Down its block, then k, then the rows of the region, then its columns.
  Strip strip_after(const Strip& strip) const {
    const Block& block = strip.block;
    if (strip.top + strip.rows < block.rows) return strip_of(block, strip.index + 1);
    const int64_t i = block.row - region.row, j = block.column - region.column;
    const int64_t k = block.k + block.depth;
    if (k < product.shape_.k) return strip_of(block_at(i, j, k), 0);
    if (i + block.rows < region.rows) return strip_of(block_at(i + block.rows, j, 0), 0);
    if (j + block.columns < region.columns) return strip_of(block_at(0, j + block.columns, 0), 0);
    return {};
  }

  /// Panel `index` of a block of B.
  Part panel_of(const Block& block, int64_t index) const {
    const ProductShape& shape = product.shape_;
    const int64_t j = index * kTileColumns;
    const int64_t at = (block.column + j) * shape.b_column_step + block.k * shape.b_k_step;
    return {b + at * product.element_bytes_, shape.b_column_step, shape.b_k_step,
            std::min(kTileColumns, block.columns - j), block.depth};
  }

  /// A share of a strip of A: `size` of its rows, or of its lanes if those are contiguous, the
  /// last share what is left; and where it begins.
  struct Share {
    Part part;
    int64_t begin;
  };

  bool left_by_row() const { return product.shape_.a_k_step == 1; }
  int64_t share_size(const Strip& strip, int64_t shares) const {
    return ceil_div(left_by_row() ? strip.rows : lanes(strip.block.depth), shares);
  }

  Share share_of(const Strip& strip, int64_t index, int64_t size) const {
    const ProductShape& shape = product.shape_;
    const Block& block = strip.block;
    const bool by_row = left_by_row();
    const int64_t total = by_row ? strip.rows : lanes(block.depth);
    const int64_t begin = std::min(total, index * size), end = std::min(total, begin + size);
    const int64_t first_k = by_row ? 0 : begin * product.loops_.k_of_lane;
    const int64_t last_k =
        by_row ? block.depth : std::min(block.depth, end * product.loops_.k_of_lane);
    const int64_t row = block.row + strip.top + (by_row ? begin : 0);
    const int64_t at = row * shape.a_row_step + (block.k + first_k) * shape.a_k_step;
    return {{a + at * product.element_bytes_, shape.a_row_step, shape.a_k_step,
             by_row ? end - begin : strip.rows, last_k - first_k},
            begin};
  }

  void pack_left(const Strip& strip, int64_t index, int64_t size, float* panel) const {
    const Share share = share_of(strip, index, size);
    if (share.part.lines == 0 || share.part.depth == 0) return;
    product.loops_.pack_left(share.part,
                             panel + share.begin * (left_by_row() ? kRowStep : kLaneStep));
  }

  /// What the tiles of a strip read of A: its panel, or A itself.
  struct Left {
    const float* from;
    int64_t step;
  };
  Left left_of(const Strip& strip) const {
    if (!product.left_in_place_) return {left, kRowStep};
    const std::byte* from = share_of(strip, 0, strip.rows).part.from;
    return {reinterpret_cast<const float*>(from),
            product.shape_.a_row_step / product.loops_.k_of_lane};
  }

  /// One strip. Before each tile a share of the next strip is packed, in the first strip of a block
  /// the tile's panel of B as well; what the next tile will want so is fetched by this one.
  void multiply(const Strip& strip, const Strip& next) const {
    const Block& block = strip.block;
    const LeftForm form = left_by_row() ? LeftForm::kRows : LeftForm::kLanes;
    const Loops::Tile tile =
        product.loops_.tile[static_cast<size_t>(form)][static_cast<size_t>(strip.rows)];
    const int64_t tiles = ceil_div(block.columns, kTileColumns);
    const int64_t share = share_size(next, tiles);
    const Left rows = left_of(strip);
    float* columns = right;
    Finish finish = finish_of(strip);
    for (int64_t j = 0; j < tiles; ++j) {
      if (strip.top == 0) product.loops_.pack_right(panel_of(block, j), columns);
      if (next.rows > 0 && !product.left_in_place_) pack_left(next, j, share, next_left);
      place(strip, j * kTileColumns, finish);
      const Soon soon = soon_of(strip, next, j, share, finish);
      if (stays_f32(finish)) {
        tile(rows.from, rows.step, columns, lanes(block.depth), finish.partial, finish.partial_step,
             !finish.first, soon);
      } else {
        tile(rows.from, rows.step, columns, lanes(block.depth), sums, kTileColumns, false, soon);
        product.loops_.finish(sums, finish);
      }
      columns += panel_floats(block.depth);
    }
  }

  /// Does a whole tile go where it belongs as it is?
  bool stays_f32(const Finish& finish) const {
    if (finish.columns < kTileColumns) return false;
    if (!finish.last) return true;
    return product.sums_in_result_ && finish.c == nullptr && finish.alpha == 1;
  }

  /// What tile `j` fetches: its own results, and what is packed before the next one.
  Soon soon_of(const Strip& strip, const Strip& next, int64_t j, int64_t share,
               const Finish& finish) const {
    Soon soon;
    add_stretch(soon, finish);
    if (next.rows == 0) return soon;
    const bool last = (j + 1) * kTileColumns >= strip.block.columns;
    const Strip& now = last ? next : strip;
    const Strip after = last ? strip_after(next) : next;
    const int64_t index = last ? 0 : j + 1;
    add_stretch(soon, share_of(after, index, share).part, product.element_bytes_);
    if (now.top == 0) add_stretch(soon, panel_of(now.block, index), product.element_bytes_);
    return soon;
  }

  /// What all tiles of a strip have in common.
  Finish finish_of(const Strip& strip) const {
    const Block& block = strip.block;
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
    finish.partial_step = product.sums_in_result_ ? result.y_step : product.block_columns_;
    return finish;
  }

  void place(const Strip& strip, int64_t left_column, Finish& finish) const {
    const Block& block = strip.block;
    const int64_t row = block.row + strip.top, column = block.column + left_column;
    finish.columns = std::min(kTileColumns, block.columns - left_column);
    const int64_t y = row * result.y_step + column;
    finish.y = result.y + y * static_cast<int64_t>(size_of(result.y_type));
    finish.partial = product.sums_in_result_
                         ? reinterpret_cast<float*>(result.y) + y
                         : partial + strip.top * product.block_columns_ + left_column;
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
