#include "kernels/cpu/depthwise/tiles.h"

namespace halfnote::cpu::depthwise {

namespace {

/// Lines of a tile at most, 256 KiB; a tile of one row and kMinColumns may have more, up to the
/// second limit.
constexpr int64_t kTileLines = 4096, kMostLines = 16384;
constexpr int64_t kMinColumns = 512;

int64_t divided_down(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

bool Axis::meets(int64_t r, int64_t k, int64_t* source) const {
  if (!spread) {
    *source = r * stride + k * dilation - pad;
    return true;
  }
  const int64_t at = r + pad - k * dilation;
  *source = divided_down(at, stride);
  return at % stride == 0;
}

Range Axis::reach(int64_t begin, int64_t end) const {
  const int64_t span = (kernel - 1) * dilation;
  if (!spread) return {begin * stride - pad, (end - 1) * stride + span - pad + 1};
  return {divided_down(begin + pad - span, stride), divided_down(end - 1 + pad, stride) + 1};
}

Axis forward_axis(const ConvPlan& plan, size_t d) {
  return {plan.out[d],      plan.in[d],        plan.kernel[d], plan.stride[d],
          plan.dilation[d], plan.pad_begin[d], false};
}

Axis gradient_axis(const ConvPlan& plan, size_t d) {
  return {plan.in[d],        plan.out[d], plan.kernel[d], plan.stride[d], plan.dilation[d],
          plan.pad_begin[d], true};
}

std::string refusal(const KernelCall& call, const ConvPlan& plan, Direction direction,
                    Wanted wanted) {
  if (loops() == nullptr) return "the CPU has neither AVX-512 nor AVX2 with FMA";
  if (plan.groups == 1 || plan.groups != plan.channels) return "not a depthwise convolution";
  if (plan.in[0] != 1 || plan.out[0] != 1 || plan.kernel[0] != 1 || plan.pad_begin[0] != 0)
    return "three spatial dims";
  if (plan.x_size() == 0 || plan.y_size() == 0 || plan.w_size() == 0) {
    return "an operand without elements";
  }
  const DType type = call.inputs[0].dtype;
  if (!is_small_float(type)) return "elements of type " + std::string(short_name(type));
  if (call.inputs[1].dtype != type) return "operands of different types";
  if (call.domain.empty() && call.has_input(2) && call.inputs[2].dtype != type) {
    return "a bias of another type";
  }
  const DType result = call.outputs[0].dtype;
  if (!is_small_float(result)) return "a result of type " + std::string(short_name(result));
  const bool blocked =
      is_blocked(call.inputs[0]) || is_blocked(call.inputs[1]) || is_blocked(call.outputs[0]);
  if (blocked && plan.filters != plan.channels) return "several filters a channel, in blocks";
  for (size_t d = 1; d < 3; ++d) {
    const int64_t columns = std::min(kMinColumns, std::max(plan.in[d], plan.out[d]));
    const int64_t reach = columns * plan.stride[d] + plan.kernel[d] * plan.dilation[d];
    if (reach > kMostLines || plan.pad_begin[d] > kMostLines || plan.stride[d] > kMinColumns)
      return "a kernel that reaches too far";
  }
  if (plan.kernel_size() > kMostLines) return "a kernel of too many taps";
  return wanted == Wanted::kAnywhere ? "" : library_is_faster(call, plan, direction);
}

Tiling Tiling::plan(const Axis& height, const Axis& width, int64_t passes) {
  Tiling t;
  t.columns = width.results;
  if (t.columns > kMinColumns) t.columns = kMinColumns / width.phases() * width.phases();
  t.across = (width.results + t.columns - 1) / t.columns;
  for (int64_t i = 0; i < t.across; ++i) {
    const Range met = width.reach(i * t.columns, std::min((i + 1) * t.columns, width.results));
    t.source_columns = std::max(t.source_columns, met.last - met.first);
  }
  for (t.rows = height.results;; t.rows = (t.rows + 1) / 2) {
    t.down = (height.results + t.rows - 1) / t.rows;
    t.result_lines = t.rows * t.columns;
    t.source_lines = 0;
    for (int64_t i = 0; i < t.down; ++i) {
      const Box met = t.sources(height, width, t.results(height, width, i * t.across));
      t.source_lines = std::max(t.source_lines, met.rows * t.source_columns);
    }
    const bool fits = t.source_lines * passes <= kTileLines && t.result_lines <= kTileLines;
    if (fits || t.rows == 1) return t;
  }
}

std::string tile_refusal(const Tiling& tiling, int64_t passes) {
  return tiling.source_lines * passes > kMostLines ? "a kernel that reaches too far" : "";
}

Box Tiling::results(const Axis& height, const Axis& width, int64_t tile) const {
  const int64_t row = tile / across * rows, column = tile % across * columns;
  return {row, std::min(rows, height.results - row), column,
          std::min(columns, width.results - column)};
}

Box Tiling::sources(const Axis& height, const Axis& width, const Box& box) const {
  const Range met = height.reach(box.row, box.row + box.rows);
  const int64_t first = std::clamp<int64_t>(met.first, 0, height.sources);
  const int64_t last = std::clamp<int64_t>(met.last, first, height.sources);
  return {first, last - first, width.reach(box.column, box.column + 1).first, source_columns};
}

void WeightLines::fill(const std::byte* weights, float* lines, float* room, int threads) const {
  const int64_t length = passes * taps;  // of a lane
  parallel_blocks(blocks(), 16, threads, [&](int64_t begin, int64_t end) {
    const float* from = reinterpret_cast<const float*>(weights);
    if (type != DType::kF32) {
      const int64_t first = begin * kLanes * length;
      const int64_t last = std::min(end * kLanes, lanes) * length;
      load_reals(weights, type, first, last - first, room + first);
      from = room;
    }
    for (int64_t block = begin; block < end; ++block) {
      std::array<const float*, kLanes> lane;
      for (int64_t l = 0; l < kLanes; ++l) {
        const int64_t at = std::min(block * kLanes + l, lanes - 1);
        lane[static_cast<size_t>(l)] = from + at * length;
      }
      loops()->to_lines(lane.data(), 0, length, lines + block * block_size());
    }
  });
}

}  // namespace halfnote::cpu::depthwise
