// How tiles run: loads, steps, roundings and stores over the elements of a call, and the sums that
// end a program.
#include <array>
#include <bit>
#include <utility>

#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/pointwise/tile.h"
#include "kernels/cpu/stateful/keep.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::pointwise {

namespace {

using Room = std::array<float, kTile + kSpread>;  // behind the tile, short runs may be written over

/// `count` elements from element `at` on, in f32.
void load_elements(const Loops& loops, DType dtype, const std::byte* from, int64_t at,
                   int64_t count, float* to) {
  const auto size = static_cast<size_t>(count);
  switch (dtype) {
    case DType::kF32:
      std::copy_n(reinterpret_cast<const float*>(from) + at, size, to);
      return;
    case DType::kF16:
      convert(std::span(reinterpret_cast<const Half*>(from) + at, size), std::span(to, size));
      return;
    case DType::kBF16:
      convert(std::span(reinterpret_cast<const BFloat16*>(from) + at, size), std::span(to, size));
      return;
    default:
      loops.from_bool(reinterpret_cast<const uint8_t*>(from) + at, to, count);
  }
}

void store_elements(const Loops& loops, DType dtype, const float* from, std::byte* to, int64_t at,
                    int64_t count) {
  const auto size = static_cast<size_t>(count);
  switch (dtype) {
    case DType::kF32:
      std::copy_n(from, size, reinterpret_cast<float*>(to) + at);
      return;
    case DType::kF16:
      convert(std::span(from, size), std::span(reinterpret_cast<Half*>(to) + at, size));
      return;
    case DType::kBF16:
      convert(std::span(from, size), std::span(reinterpret_cast<BFloat16*>(to) + at, size));
      return;
    default:
      loops.to_bool(from, reinterpret_cast<uint8_t*>(to) + at, count);
  }
}

/// Rounds to the type of a step's result and back; of bool that is 1 for all but 0.
void round_elements(const Loops& loops, DType dtype, float* values, int64_t count) {
  const auto size = static_cast<size_t>(count);
  if (dtype == DType::kBool) {
    for (float& value : std::span(values, size)) value = value != 0.0f ? 1.0f : 0.0f;
    return;
  }
  if (dtype == DType::kBF16) return loops.round_bf16(values, values, count);
  if (dtype == DType::kF16) {
    std::array<Half, kTile> narrow;
    convert(std::span<const float>(values, size), std::span<Half>(narrow.data(), size));
    convert(std::span<const Half>(narrow.data(), size), std::span<float>(values, size));
  }
}

/// Runs that lie one after the other, as has_short_runs() says, in f32; without a call for each.
void load_rows(const Loops& loops, DType dtype, const std::byte* from, const Runs& runs,
               const RunRows& rows, float* to) {
  const int64_t step = runs.strides[0][runs.dims.size() - 2], length = rows.length;
  const auto* floats = reinterpret_cast<const float*>(from);
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  const bool narrow = dtype == DType::kBF16;
  if (runs.step(0) == 0) {
    return narrow ? loops.spread_bf16(halves, step, rows.rows, length, to)
                  : loops.spread(floats, step, rows.rows, length, to);
  }
  const auto load_row = [&](int64_t r) {
    float* row = to + r * length;
    if (!narrow)
      return copy_piece(floats + r * step, static_cast<size_t>(length) * sizeof(float), row);
    for (int64_t i = 0; i < length; ++i)
      row[i] = std::bit_cast<float>(static_cast<uint32_t>(halves[r * step + i]) << 16);
  };
  if (step != 0) {
    for (int64_t r = 0; r < rows.rows; ++r) load_row(r);
    return;
  }
  load_row(0);  // and all rows are this one
  for (int64_t made = length, count = rows.rows * length; made < count; made *= 2)
    std::copy_n(to, std::min(made, count - made), to + made);
}

/// Sums of columns, to which rows are added one behind the other, wherever they are cut.
struct ColumnSums {
  double* sums = nullptr;
  int64_t width = 0, column = 0;  // the next element's

  void add(const Loops& loops, const float* x, int64_t count) {
    while (count > 0) {
      const int64_t some = std::min(count, width - column);
      loops.add_to_sums(x, some, sums + column);
      column = column + some == width ? 0 : column + some;
      x += some;
      count -= some;
    }
  }
};

/// Sums of rows one behind the other, wherever they are cut, in the order of ReduceSum.
class RowSums {
 public:
  explicit RowSums(int64_t length) : length_(length) {}

  /// May rows end in the next tile whose sums have no room?
  bool full() const { return done_ + kTile / length_ + 1 > kMost; }
  /// At most kTile elements.
  void add(const float* x, int64_t count) {
    while (count > 0) {
      const int64_t rows = at_ == 0 ? count / length_ : 0;
      const int64_t some = rows > 0 ? rows * length_ : std::min(count, length_ - at_);
      rows > 0 ? add_rows(x, rows) : add_piece(x, some);
      x += some;
      count -= some;
    }
  }
  /// The sums of the rows that have ended since the last call, valid until the next element.
  std::span<const double> take() {
    return std::span(sums_).first(static_cast<size_t>(std::exchange(done_, 0)));
  }

 private:
  static constexpr int64_t kMost = kTile + 1;
  static constexpr int64_t kLanes = fast::ReduceLoops::kLanes;

  void add_rows(const float* x, int64_t rows) {
    loops_.sum(x, rows, length_, sums_.data() + done_);
    done_ += rows;
  }
  void add_piece(const float* x, int64_t count) {
    const double sum = loops_.add_run(x, count, lanes_.data());
    at_ += count;
    if (at_ < length_) {  // the next element is the first lane's
      std::ranges::rotate(lanes_, lanes_.begin() + count % kLanes);
      return;
    }
    sums_[static_cast<size_t>(done_++)] = sum;  // turned or not, the same lanes meet in it
    lanes_ = {};
    at_ = 0;
  }

  const fast::ReduceLoops& loops_ = fast::reduce_loops();
  int64_t length_, at_ = 0;  // elements of a row, and of this one so far
  int64_t done_ = 0;
  alignas(64) std::array<double, kLanes> lanes_{};
  std::array<double, kMost> sums_;
};

}  // namespace

/// One tile under way: where its slots are.
struct TileProgram::Tile {
  const Loops& loops;
  const KernelBuffers& buffers;
  Room* rooms;
  const float** places;  // where the elements of a room are: in it, or in an input
  int64_t at = 0, count = 0;
  ColumnSums* column_sums = nullptr;  // what the elements are added to, if to anything
  RowSums* row_sums = nullptr;

  const float* read(const Slot& slot) const {
    switch (slot.space) {
      case Slot::Space::kInput:
        return buffers.in<float>(slot.index) + at;
      case Slot::Space::kOutput:
        return buffers.out<float>(slot.index) + at;
      case Slot::Space::kRoom:
        break;
    }
    return places[slot.index];
  }
  float* write(const Slot& slot) const {
    if (slot.space == Slot::Space::kOutput) return buffers.out<float>(slot.index) + at;
    places[slot.index] = rooms[slot.index].data();
    return rooms[slot.index].data();
  }
  void load(const Input& input, size_t index, const Slot& slot) const {
    const std::byte* from = buffers.inputs[index];
    float* to = write(slot);
    if (input.short_runs) {
      const auto size = static_cast<int64_t>(size_of(input.dtype));
      walk_rows<1>(input.runs, at, at + count, [&](const RunRows& rows, const auto& offsets) {
        load_rows(loops, input.dtype, from + offsets[0] * size, input.runs, rows,
                  to + (rows.position - at));
      });
      return;
    }
    walk_runs<1>(input.runs, at, at + count,
                 [&](int64_t position, const auto& offsets, int64_t length) {
                   float* start = to + (position - at);
                   if (length == count && input.dtype == DType::kF32 && input.runs.step(0) != 0) {
                     places[slot.index] = reinterpret_cast<const float*>(from) + offsets[0];
                     return;
                   }
                   if (input.runs.step(0) != 0)
                     return load_elements(loops, input.dtype, from, offsets[0], length, start);
                   load_elements(loops, input.dtype, from, offsets[0], 1, start);
                   loops.fill(*start, start, length);
                 });
  }
};

namespace {

/// Draws again what a node of its own would, and drops.
void drop_elements(const KeepStream& stream, float factor, int64_t at, int64_t count,
                   const float* from, float* to) {
  std::array<uint64_t, kTile / 64> bits;
  keep_bits(stream, static_cast<uint64_t>(at), (count + 63) / 64, bits.data());
  keep_loops().drop(from, count, bits.data(), factor, to);
}

}  // namespace

void TileProgram::run_actions(const Tile& tile, bool is_first) const {
  for (const Action& action : actions_) {
    switch (action.kind) {
      case Kind::kLoad:
        if (inputs_[action.operand].single && !is_first) break;  // it lies there already
        tile.load(inputs_[action.operand], action.operand, action.to);
        break;
      case Kind::kConvert:
        load_elements(loops_, action.dtype, tile.buffers.inputs[action.operand], tile.at,
                      tile.count, tile.write(action.to));
        break;
      case Kind::kStep: {
        const float* in[kMaxOperands];
        for (size_t i = 0; i < action.operands; ++i) in[i] = tile.read(action.from[i]);
        action.loop(in, tile.write(action.to), tile.count, action.parameters);
        break;
      }
      case Kind::kDrop: {
        const KeepStream stream{static_cast<uint64_t>(*tile.buffers.in<int64_t>(action.seed)),
                                static_cast<uint64_t>(*tile.buffers.in<int64_t>(action.step)),
                                static_cast<uint32_t>(action.parameters[1]),
                                keep_threshold(action.parameters[0])};
        const float* from = tile.read(action.from[0]);
        drop_elements(stream, keep_factor(action.parameters[0]), tile.at, tile.count, from,
                      tile.write(action.to));
        break;
      }
      case Kind::kRound:
        round_elements(loops_, action.dtype, tile.write(action.to), tile.count);
        break;
      case Kind::kStore:
        store_elements(loops_, action.dtype, tile.read(action.from[0]),
                       tile.buffers.outputs[action.operand], tile.at, tile.count);
        break;
      case Kind::kReload:
        load_elements(loops_, action.dtype, tile.buffers.outputs[action.operand], tile.at,
                      tile.count, tile.write(action.to));
        break;
      case Kind::kSum:
        if (tile.row_sums != nullptr) tile.row_sums->add(tile.read(action.from[0]), tile.count);
        if (tile.column_sums != nullptr)
          tile.column_sums->add(loops_, tile.read(action.from[0]), tile.count);
        break;
    }
  }
}

void TileProgram::run_elements(const KernelBuffers& buffers, int64_t begin, int64_t end) const {
  alignas(64) Room rooms[kMaxRooms];
  const float* places[kMaxRooms] = {};
  Tile tile{loops_, buffers, rooms, places};
  for (tile.at = begin; tile.at < end; tile.at += kTile) {
    tile.count = std::min(kTile, end - tile.at);
    run_actions(tile, tile.at == begin);
  }
}

void TileProgram::run_columns(const KernelBuffers& buffers, int64_t begin, int64_t end,
                              int64_t column, int64_t count, double* sums) const {
  alignas(64) Room rooms[kMaxRooms];
  const float* places[kMaxRooms] = {};
  Tile tile{loops_, buffers, rooms, places};
  std::fill_n(sums, count, 0.0);
  ColumnSums columns{sums, count};
  tile.column_sums = &columns;
  // Whole rows are one run of tiles. The first tile is as long as any: what fills a room once for
  // all fills it for them.
  const int64_t width = sum_->plan.width, rows = count == width ? end - begin : 1;
  for (int64_t row = begin; row < end; row += rows) {
    const int64_t first = row * width + column, last = first + rows * count;
    for (tile.at = first; tile.at < last; tile.at += kTile) {
      tile.count = std::min(kTile, last - tile.at);
      run_actions(tile, row == begin && tile.at == first);
    }
  }
}

void TileProgram::run_rows(const KernelBuffers& buffers, int64_t begin, int64_t end, int64_t length,
                           double* sum) const {
  alignas(64) Room rooms[kMaxRooms];
  const float* places[kMaxRooms] = {};
  Tile tile{loops_, buffers, rooms, places};
  RowSums sums(length);
  tile.row_sums = &sums;
  int64_t row = begin / length;
  for (tile.at = begin; tile.at < end; tile.at += kTile) {
    tile.count = std::min(kTile, end - tile.at);
    run_actions(tile, tile.at == begin);
    if (sum == nullptr && sums.full()) row = store_sums(buffers, sums.take(), row);
  }
  const std::span<const double> done = sums.take();
  if (sum == nullptr) {
    store_sums(buffers, done, row);
  } else {
    *sum = done[0];
  }
}

/// Rounds and stores the sums of the results from `first` on, about kTile at most; the end of them.
int64_t TileProgram::store_sums(const KernelBuffers& buffers, std::span<const double> sums,
                                int64_t first) const {
  Room room;
  for (size_t i = 0; i < sums.size(); ++i) room[i] = static_cast<float>(sums[i] / sum_->divisor);
  store_elements(loops_, outputs_[sum_->output], room.data(), buffers.outputs[sum_->output], first,
                 static_cast<int64_t>(sums.size()));
  return first + static_cast<int64_t>(sums.size());
}

/// The partial sums of each result in their order, as ReduceSum adds them.
void TileProgram::add_partials(const KernelBuffers& buffers, int threads) const {
  const double* partials = reinterpret_cast<const double*>(buffers.workspace);
  const int64_t results = sum_->matrix.results();
  parallel_blocks(results, kTile, threads, [&](int64_t begin, int64_t end) {
    std::array<double, kTile> sums;
    for (int64_t i = begin; i < end; ++i) {
      double sum = partials[i];
      for (int64_t block = 1; block < sum_->plan.blocks; ++block)
        sum += partials[block * results + i];
      sums[static_cast<size_t>(i - begin)] = sum;
    }
    store_sums(buffers, std::span(sums).first(static_cast<size_t>(end - begin)), begin);
  });
}

size_t TileProgram::workspace_bytes() const {
  if (!sum_ || (sum_->matrix.along_rows && sum_->plan.blocks == 1)) return 0;
  return static_cast<size_t>(sum_->matrix.results() * sum_->plan.blocks) * sizeof(double);
}

/// Whole rows lie in one piece. Where there are too few blocks of them for all threads, strips of
/// columns are cut besides: no sum depends on where.
void TileProgram::sum_columns(const KernelBuffers& buffers, int threads) const {
  const ReducePlan& plan = sum_->plan;
  if (plan.width == 0) return;
  const int64_t wanted = (2 * threads + plan.blocks - 1) / plan.blocks;
  const int64_t tiles = (plan.width + kTile - 1) / kTile;
  const int64_t strip = threads == 1 || tiles == 1 ? plan.width
                                                   : (tiles + std::min(wanted, tiles) - 1) /
                                                         std::min(wanted, tiles) * kTile;
  const int64_t strips = (plan.width + strip - 1) / strip;
  double* partials = reinterpret_cast<double*>(buffers.workspace);
  parallel_blocks(plan.blocks * strips, 1, threads, [&](int64_t unit, int64_t) {
    const int64_t block = unit / strips, column = unit % strips * strip;
    const int64_t begin = block * plan.block;
    run_columns(buffers, begin, std::min(plan.reduced.count, begin + plan.block), column,
                std::min(strip, plan.width - column), partials + block * plan.width + column);
  });
  add_partials(buffers, threads);
}

/// Rows of one unit of ReduceSum each go together, longer ones unit by unit.
void TileProgram::sum_rows(const KernelBuffers& buffers, int threads) const {
  const int64_t rows = sum_->matrix.rows, length = sum_->matrix.columns;
  const int64_t blocks = sum_->plan.blocks, block = sum_->plan.block;
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, length));
  if (length == 0) {
    constexpr std::array<double, kTile> kNothing{};
    return parallel_blocks(rows, kTile, 1, [&](int64_t begin, int64_t end) {
      store_sums(buffers, std::span(kNothing).first(static_cast<size_t>(end - begin)), begin);
    });
  }
  if (blocks == 1) {
    return parallel_blocks(rows, grain, threads, [&](int64_t begin, int64_t end) {
      run_rows(buffers, begin * length, end * length, length, nullptr);
    });
  }
  double* partials = reinterpret_cast<double*>(buffers.workspace);
  parallel_blocks(rows * blocks, 1, threads, [&](int64_t unit, int64_t) {
    const int64_t row = unit / blocks, begin = unit % blocks * block;
    const int64_t size = std::min(length - begin, block), first = row * length + begin;
    run_rows(buffers, first, first + size, size, partials + unit % blocks * rows + row);
  });
  add_partials(buffers, threads);
}

void TileProgram::run(const KernelBuffers& buffers, int threads) const {
  if (sum_)
    return sum_->matrix.along_rows ? sum_rows(buffers, threads) : sum_columns(buffers, threads);
  parallel_blocks(count_, kElementGrain, threads,
                  [&](int64_t begin, int64_t end) { run_elements(buffers, begin, end); });
}

}  // namespace halfnote::cpu::pointwise
