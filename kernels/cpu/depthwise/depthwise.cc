// Depthwise convolutions (a group for each channel, one filter or some) and their gradients for the
// input, which are ConvTranspose too. Plain operands become lines of 16 channels on the way into
// the cache, operands in channel blocks lie so already; 16-bit ones become f32.
//
// A result is summed over its taps in f32, in the same few chains whoever computes it: the same
// bits on any number of threads. Taps beyond the left and right edges multiply zeros, those beyond
// the others are left out.
#include <map>

#include "kernels/cpu/depthwise/choice.h"
#include "kernels/cpu/depthwise/rows.h"
#include "kernels/cpu/depthwise/tiles.h"

namespace halfnote::cpu::depthwise {

namespace {

/// The taps that the results of one row meet, one list for each phase of the columns.
struct RowTaps {
  int64_t source = 0;  // the row that the lists count from
  size_t first = 0;    // list
};

struct Depthwise {
  Axis height, width;
  Planes source, result;
  WeightLines weights;
  DType bias = DType::kUndefined;
  int64_t images = 0;
  int64_t source_factor = 1, source_divisor = 1;  // LanePlanes of the source
  Tiling tiling;
  std::vector<RowTaps> rows;
  std::vector<std::vector<Tap>> lists;
  // Floats of the workspace: the weights, then a room for each slot.
  int64_t slots = 1, room = 0, source_room = 0, result_room = 0;

  int64_t pass_lines() const { return tiling.source_lines; }
  size_t workspace() const {
    return static_cast<size_t>(weights.size() + weights.room() + slots * room) * sizeof(float);
  }

  void list_taps();
  void add_lists(int64_t row, RowTaps& taps);
  void plan_rooms(int threads);
  void unit(const KernelBuffers& buffers, const float* lines, int64_t index, float* mine) const;
  void tile(const float* x, const Box& from, const Box& to, const float* w, const float* start,
            float* y, int64_t y_row) const;
  void run(const KernelBuffers& buffers, int threads) const;
};

/// Columns of a tap that never meet a source are left out, where a tile has all columns.
bool meets_any(const Axis& width, int64_t phase, int64_t k) {
  int64_t source = 0;
  for (int64_t r = phase; r < width.results; r += width.phases()) {
    if (width.meets(r, k, &source) && width.within(source)) return true;
  }
  return false;
}

void Depthwise::add_lists(int64_t row, RowTaps& taps) {
  const int64_t columns = tiling.source_columns, first = width.reach(0, tiling.columns).first;
  for (int64_t phase = 0; phase < width.phases(); ++phase) {
    std::vector<Tap>& list = lists.emplace_back();
    for (int64_t pass = 0; pass < weights.passes; ++pass) {
      for (int64_t kh = 0; kh < height.kernel; ++kh) {
        int64_t h = 0, w = 0;
        if (!height.meets(row, kh, &h) || !height.within(h)) continue;
        for (int64_t kw = 0; kw < width.kernel; ++kw) {
          if (!width.meets(phase, kw, &w)) continue;
          if (tiling.across == 1 && !meets_any(width, phase, kw)) continue;
          const int64_t line = pass * pass_lines() + (h - taps.source) * columns + w - first;
          const int64_t tap = pass * weights.taps + kh * width.kernel + kw;
          list.push_back({line * kLanes, tap * kLanes});
        }
      }
    }
  }
}

/// Rows that meet the same rows of the kernel, as far apart, share their lists.
void Depthwise::list_taps() {
  std::map<std::vector<int64_t>, size_t> known;
  for (int64_t row = 0; row < height.results; ++row) {
    RowTaps taps;
    std::vector<int64_t> met;
    for (int64_t kh = 0; kh < height.kernel; ++kh) {
      int64_t h = 0;
      if (!height.meets(row, kh, &h) || !height.within(h)) continue;
      if (met.empty()) taps.source = h;
      met.insert(met.end(), {kh, h - taps.source});
    }
    const auto [at, fresh] = known.try_emplace(met, lists.size());
    taps.first = at->second;
    if (fresh) add_lists(row, taps);
    rows.push_back(taps);
  }
}

void Depthwise::plan_rooms(int threads) {
  const int64_t source_lines = pass_lines() * weights.passes;
  source_room = source_lines * kLanes;
  result_room = tiling.result_lines * kLanes;
  room = source_room + result_room +
         std::max(source.room(source_lines), result.room(tiling.result_lines)) + kLanes;
  slots = std::min<int64_t>(threads, weights.blocks() * images * tiling.count());
}

void Depthwise::tile(const float* x, const Box& from, const Box& to, const float* w,
                     const float* start, float* y, int64_t y_row) const {
  const int64_t phases = width.phases();
  for (int64_t row = 0; row < to.rows; ++row) {
    const RowTaps& taps = rows[static_cast<size_t>(to.row + row)];
    const float* line = x + (taps.source - from.row) * from.columns * kLanes;
    for (int64_t phase = 0; phase < std::min(phases, to.columns); ++phase) {
      const int64_t outputs = (to.columns - phase + phases - 1) / phases;
      const std::vector<Tap>& list = lists[taps.first + static_cast<size_t>(phase)];
      loops()->sum_taps(line, width.step() * kLanes, w, list.data(), list.size(), start,
                        y + row * y_row + phase * kLanes, phases * kLanes, outputs);
    }
  }
}

/// One tile of one block of one image.
void Depthwise::unit(const KernelBuffers& buffers, const float* lines, int64_t index,
                     float* mine) const {
  const int64_t block = index / (images * tiling.count());
  const int64_t image = index / tiling.count() % images;
  const Box to = tiling.results(height, width, index % tiling.count());
  const Box from = tiling.sources(height, width, to);
  float *x = mine, *y = x + source_room, *spare = y + result_room;
  for (int64_t pass = 0; pass < weights.passes; ++pass) {
    read_lines(source, buffers.inputs[0], image,
               LanePlanes(block, weights.lanes, source_factor, source_divisor, pass), from,
               x + pass * pass_lines() * kLanes, spare);
  }
  const LanePlanes lanes(block, weights.lanes, 1, 1, 0);
  std::array<float, kLanes> start{};
  for (int64_t l = 0; bias != DType::kUndefined && l < lanes.count; ++l) {
    start[static_cast<size_t>(l)] =
        static_cast<float>(read_real(buffers.inputs[2], bias, block * kLanes + l));
  }
  const float* w = lines + block * weights.block_size();
  if (result.blocked && result.type == DType::kF32) {
    float* at = buffers.out<float>(0) + (image * result.planes + lanes.plane[0]) * result.area() +
                (to.row * result.width + to.column) * kLanes;
    return tile(x, from, to, w, start.data(), at, result.width * kLanes);
  }
  tile(x, from, to, w, start.data(), y, to.columns * kLanes);
  write_lines(result, y, image, lanes, to, buffers.outputs[0], spare);
}

void Depthwise::run(const KernelBuffers& buffers, int threads) const {
  auto* lines = reinterpret_cast<float*>(buffers.workspace);
  float* rooms = lines + weights.size() + weights.room();
  weights.fill(buffers.inputs[1], lines, lines + weights.size(), threads);
  const int64_t units = weights.blocks() * images * tiling.count();
  parallel_blocks(slots, 1, threads, [&](int64_t slot, int64_t) {
    const int64_t end = (slot + 1) * units / slots;
    for (int64_t i = slot * units / slots; i < end; ++i) {
      unit(buffers, lines, i, rooms + slot * room);
    }
  });
}

Prepared prepared(const KernelCall& call, Depthwise depthwise) {
  if (call.domain.empty() && call.has_input(2)) depthwise.bias = call.inputs[2].dtype;
  const int64_t passes = depthwise.weights.passes;
  depthwise.tiling = Tiling::plan(depthwise.height, depthwise.width, passes);
  if (std::string why = tile_refusal(depthwise.tiling, passes); !why.empty())
    return Prepared::no(why);
  depthwise.plan_rooms(call.threads);
  depthwise.list_taps();
  auto plan = std::make_shared<const Depthwise>(std::move(depthwise));
  return make_kernel(
      [plan, threads = call.threads](const KernelBuffers& buffers) { plan->run(buffers, threads); },
      plan->workspace());
}

Planes planes_of(const Operand& operand, int64_t planes, const ConvPlan::Dims& dims) {
  return {operand.dtype, is_blocked(operand), planes, dims[1], dims[2]};
}

template <Wanted wanted>
Prepared prepare_forward(const KernelCall& call) {
  const ConvPlan plan = plan_conv(call);
  if (std::string why = refusal(call, plan, Direction::kForward, wanted); !why.empty())
    return Prepared::no(why);
  Depthwise d;
  d.height = forward_axis(plan, 1);
  d.width = forward_axis(plan, 2);
  d.source = planes_of(call.inputs[0], plan.channels, plan.in);
  d.result = planes_of(call.outputs[0], plan.filters, plan.out);
  d.weights = {call.inputs[1].dtype, plan.filters, 1, plan.kernel_size()};
  d.images = plan.batch;
  d.source_divisor = plan.group_filters();
  return prepared(call, std::move(d));
}

template <ConvPlan (*plan_call)(const KernelCall&), Wanted wanted>
Prepared prepare_gradient(const KernelCall& call) {
  const ConvPlan plan = plan_call(call);
  if (std::string why = refusal(call, plan, Direction::kGradInput, wanted); !why.empty())
    return Prepared::no(why);
  Depthwise d;
  d.height = gradient_axis(plan, 1);
  d.width = gradient_axis(plan, 2);
  d.source = planes_of(call.inputs[0], plan.filters, plan.out);
  d.result = planes_of(call.outputs[0], plan.channels, plan.in);
  d.weights = {call.inputs[1].dtype, plan.channels, plan.group_filters(), plan.kernel_size()};
  d.images = plan.batch;
  d.source_factor = plan.group_filters();
  return prepared(call, std::move(d));
}

template <Wanted wanted>
std::vector<KernelRow> rows_named(std::string_view name) {
  return {
      {"", "Conv", name, prepare_forward<wanted>},
      {"", "ConvTranspose", name, prepare_gradient<plan_conv_transpose, wanted>},
      {"ai.halfnote", "ConvGradInput", name, prepare_gradient<plan_conv_grad_input, wanted>},
  };
}

}  // namespace

std::vector<KernelRow> input_rows() { return rows_named<Wanted::kWhereItPays>(kName); }

std::vector<KernelRow> other_input_rows() { return rows_named<Wanted::kAnywhere>(kOtherName); }

}  // namespace halfnote::cpu::depthwise
