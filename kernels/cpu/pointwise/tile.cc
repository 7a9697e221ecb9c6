#include "kernels/cpu/pointwise/tile.h"

#include <array>
#include <bit>

#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/pointwise/fused.h"
#include "kernels/cpu/pointwise/shapes.h"
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

/// Does a step leave numbers that its type does not hold? Of those that give bool only a cast does:
/// the others make 0 and 1.
bool needs_rounding(const PointwiseStep& step) {
  return is_16bit_float(step.dtype) ||
         (step.dtype == DType::kBool && step.op == PointwiseOp::kCast);
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

/// Runs of up to kSpread elements, adjacent or alike.
bool has_short_runs(DType dtype, const Runs& runs) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) return false;
  if (runs.dims.size() < 2 || runs.dims.back() > kSpread) return false;
  return runs.step(0) == 0 || runs.step(0) == 1;
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

}  // namespace

/// Turns the steps into actions: loads before the first use, roundings and stores behind the step,
/// rooms reused once nobody reads them any more.
class TileProgram::Compiler {
 public:
  Compiler(TileProgram& tile, const PointwiseProgram& program, std::vector<Task> tasks)
      : tile_(tile),
        program_(program),
        tasks_(std::move(tasks)),
        loaded_(tile.inputs_.size()),
        results_(program.steps.size()),
        is_loaded_(loaded_.size()) {}

  void run() {
    find_last_uses();
    for (const Task& task : tasks_) add_task(task);
    tile_.rooms_ = rooms_;
  }

 private:
  void find_last_uses() {
    last_of_input_.assign(tile_.inputs_.size(), -1);
    last_of_step_.assign(program_.steps.size(), -1);
    for (const Task& task : tasks_) {
      for (const int operand : task.operands) {
        (operand >= 0 ? last_of_input_[static_cast<size_t>(operand)]
                      : last_of_step_[static_cast<size_t>(~operand)]) = task.step;
      }
    }
  }

  Slot new_room() {
    if (!free_.empty()) {
      const size_t room = free_.back();
      free_.pop_back();
      return {Slot::Space::kRoom, room};
    }
    return {Slot::Space::kRoom, rooms_++};
  }
  void release(const Slot& slot) {
    if (slot.space == Slot::Space::kRoom) free_.push_back(slot.index);
  }

  Slot slot_of(int operand) {
    if (operand < 0) return results_[static_cast<size_t>(~operand)];
    const auto index = static_cast<size_t>(operand);
    if (!is_loaded_[index]) {
      const Input& input = tile_.inputs_[index];
      is_loaded_[index] = true;
      if (input.whole && input.dtype == DType::kF32) {
        loaded_[index] = {Slot::Space::kInput, index};
      } else {
        // The room of a single element is nobody else's: it must last for all tiles.
        loaded_[index] = input.single ? Slot{Slot::Space::kRoom, rooms_++} : new_room();
        Action load{input.whole ? Kind::kConvert : Kind::kLoad};
        load.to = loaded_[index];
        load.operand = index;
        load.dtype = input.dtype;
        add(load);
        tile_.last_read_[index] = tile_.actions_.size() - 1;
      }
    }
    return loaded_[index];
  }

  void add(const Action& action) { tile_.actions_.push_back(action); }

  void add_task(const Task& task) {
    const int number = task.step;
    const PointwiseStep& step = program_.steps[static_cast<size_t>(number)];
    if (step.op == PointwiseOp::kReduceSum) return add_sum(task);
    const bool draws = pointwise_row(step.op).types == PointwiseTypes::kDraw;
    Action action{draws ? Kind::kDrop : Kind::kStep};
    action.loop = task.loop;
    if (draws) {
      action.seed = static_cast<size_t>(step.operands[1]);
      action.step = static_cast<size_t>(step.operands[2]);
    }
    action.operands = task.operands.size();
    std::copy(step.parameters.begin(), step.parameters.end(), action.parameters);
    for (size_t i = 0; i < action.operands; ++i) action.from[i] = slot_of(task.operands[i]);
    for (size_t i = 0; i < action.operands; ++i) finish_operand(task, i);
    const auto output = std::ranges::find(program_.outputs, number);
    const bool is_output = output != program_.outputs.end();
    const auto index = static_cast<size_t>(output - program_.outputs.begin());
    const bool direct = is_output && step.dtype == DType::kF32;
    action.to = direct ? Slot{Slot::Space::kOutput, index} : new_room();
    const size_t position = tile_.actions_.size();
    for (size_t i = 0; i < action.operands; ++i) {
      if (task.operands[i] >= 0 && action.from[i].space == Slot::Space::kInput)
        tile_.last_read_[action.from[i].index] = position;
    }
    add(action);
    results_[static_cast<size_t>(number)] = action.to;
    const bool read_again = last_of_step_[static_cast<size_t>(number)] >= 0;
    const bool one_store = is_output && !read_again;  // which rounds
    if (needs_rounding(step) && !one_store) {
      Action round{Kind::kRound};
      round.to = action.to;
      round.dtype = step.dtype;
      add(round);
    }
    if (is_output) add_stores(number, action.to, step.dtype);
    if (!read_again) release(action.to);
  }

  void add_sum(const Task& task) {
    Action action{Kind::kSum};
    action.from[0] = slot_of(task.operands[0]);
    if (action.from[0].space == Slot::Space::kInput)
      tile_.last_read_[action.from[0].index] = tile_.actions_.size();
    add(action);
    finish_operand(task, 0);
  }

  /// One value may be several outputs.
  void add_stores(int number, const Slot& from, DType dtype) {
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      if (program_.outputs[k] != number) continue;
      tile_.first_written_[k] = tile_.actions_.size() - 1;
      if (from.space == Slot::Space::kOutput && from.index == k) continue;
      Action store{Kind::kStore};
      store.from[0] = from;
      store.operand = k;
      store.dtype = dtype;
      add(store);
      tile_.first_written_[k] = tile_.actions_.size() - 1;
    }
  }

  /// Gives back the room of an operand that is read for the last time, once.
  void finish_operand(const Task& task, size_t i) {
    const int operand = task.operands[i];
    for (size_t k = 0; k < i; ++k) {
      if (task.operands[k] == operand) return;
    }
    const bool is_input = operand >= 0;
    const auto index = static_cast<size_t>(is_input ? operand : ~operand);
    if (is_input && tile_.inputs_[index].single) return;  // for the tiles to come
    if ((is_input ? last_of_input_ : last_of_step_)[index] != task.step) return;
    release(is_input ? loaded_[index] : results_[index]);
  }

  TileProgram& tile_;
  const PointwiseProgram& program_;
  const std::vector<Task> tasks_;
  std::vector<Slot> loaded_, results_;  // where inputs and the results of steps are
  std::vector<bool> is_loaded_;
  std::vector<int> last_of_input_, last_of_step_;
  std::vector<size_t> free_;
  size_t rooms_ = 0;
};

std::string TileProgram::refusal(const KernelCall& call) {
  if (call.inputs.empty() || call.outputs.empty()) return "an operand is missing";
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.has_input(i)) return "an operand is missing";
    if (std::string why = unfit_input(call.inputs[i].dtype, call.inputs[i].size()); !why.empty())
      return why;
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (!call.has_output(i)) return "an operand is missing";
    if (!is_pointwise_type(call.outputs[i].dtype))
      return "elements of type " + std::string(short_name(call.outputs[i].dtype));
  }
  return {};
}

TileProgram::TileProgram(const PointwiseProgram& program, const KernelCall& call,
                         const Loops& loops)
    : loops_(loops), last_read_(call.inputs.size(), 0), first_written_(call.outputs.size(), 0) {
  const Shape shape = elements_of(program, call);
  count_ = element_count(shape);
  if (const std::optional<PointwiseSum> sum = sum_of(program)) {
    const SummedShape matrix = summed_shape(shape, sum->dims);
    sum_ = {sum->output, plan_reduce({matrix.rows, matrix.columns}, {0})};
  }
  for (const Operand& operand : call.inputs) {
    if (operand.dtype == DType::kI64) {
      inputs_.push_back(
          {operand.dtype, false, false, false, {}});  // read by a Dropout, at each run
      continue;
    }
    Input input{operand.dtype, false, false, false, plan_broadcast({operand.shape}, shape)};
    input.whole = operand.size() == count_;
    input.single = operand.size() == 1 && !input.whole;
    input.short_runs = has_short_runs(input.dtype, input.runs);
    inputs_.push_back(std::move(input));
  }
  for (const Operand& operand : call.outputs) outputs_.push_back(operand.dtype);
  Compiler(*this, program, plan_tasks(program, call.inputs, loops)).run();
}

bool TileProgram::can_share(size_t input, size_t output) const {
  if (sum_ && sum_->output == output) return false;
  return inputs_[input].whole && size_of(inputs_[input].dtype) == size_of(outputs_[output]) &&
         last_read_[input] <= first_written_[output];
}

/// One tile under way: where its slots are.
struct TileProgram::Tile {
  const Loops& loops;
  const KernelBuffers& buffers;
  Room* rooms;
  const float** places;  // where the elements of a room are: in it, or in an input
  int64_t at = 0, count = 0;
  int64_t columns = 0;  // of `sums`; the tile is one row of them, or several whole ones
  double* sums = nullptr;

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
      case Kind::kSum:
        for (int64_t i = 0; i < tile.count; i += tile.columns)
          loops_.add_to_sums(tile.read(action.from[0]) + i, tile.columns, tile.sums);
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
  // The first tile is as long as any: what fills a room once for all fills it for them.
  const int64_t width = sum_->plan.width;
  const int64_t rows = count == width ? std::max<int64_t>(1, kTile / width) : 1;
  for (int64_t row = begin; row < end; row += rows) {
    for (int64_t at = 0; at < count; at += kTile) {
      tile.at = row * width + column + at;
      tile.columns = std::min(kTile, count - at);
      tile.count = tile.columns * std::min(rows, end - row);
      tile.sums = sums + at;
      run_actions(tile, row == begin && at == 0);
    }
  }
}

/// The partial sums of each column in the order of the rows, as ReduceSum adds them.
void TileProgram::store_sums(const KernelBuffers& buffers, int threads) const {
  const ReducePlan& plan = sum_->plan;
  const double* partials = reinterpret_cast<const double*>(buffers.workspace);
  parallel_blocks(plan.width, kTile, threads, [&](int64_t begin, int64_t end) {
    Room room;
    for (int64_t i = begin; i < end; ++i) {
      double sum = partials[i];
      for (int64_t block = 1; block < plan.blocks; ++block) sum += partials[block * plan.width + i];
      room[static_cast<size_t>(i - begin)] = static_cast<float>(sum);
    }
    store_elements(loops_, outputs_[sum_->output], room.data(), buffers.outputs[sum_->output],
                   begin, end - begin);
  });
}

size_t TileProgram::workspace_bytes() const {
  return sum_ ? static_cast<size_t>(sum_->plan.results() * sum_->plan.blocks) * sizeof(double) : 0;
}

void TileProgram::run(const KernelBuffers& buffers, int threads) const {
  if (!sum_) {
    parallel_blocks(count_, kElementGrain, threads,
                    [&](int64_t begin, int64_t end) { run_elements(buffers, begin, end); });
    return;
  }
  // Whole rows lie in one piece. Where there are too few blocks of them for all threads, strips of
  // columns are cut besides: no sum depends on where.
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
  store_sums(buffers, threads);
}

}  // namespace halfnote::cpu::pointwise
