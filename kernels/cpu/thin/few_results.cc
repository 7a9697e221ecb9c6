// Convolutions with few result channels (the last layer of a style transfer or of a generator, the
// gradient for an image): oneDNN computes 16 at a time, of which 3 are wanted. Here lanes are
// columns. Source rows become f32 with zeros beside them; results are summed over channels and taps
// in order by whoever computes them: the same bits on any number of threads.
#include <map>

#include "kernels/cpu/best_loops.h"
#include "kernels/cpu/depthwise/tiles.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/thin/loops.h"
#include "kernels/cpu/thin/rows.h"

namespace halfnote::cpu::thin {

const Loops* loops() { return best_loops<kAvx512Loops, kAvx2Loops, Loops>(nullptr); }

namespace {

using depthwise::Axis;

/// Floats of the sources of a tile at most, 512 KiB; and of all weights and lists.
constexpr int64_t kTileFloats = int64_t{1} << 17, kMostTaps = int64_t{1} << 16;

/// What a row of results meets, a list for each phase of the columns.
struct RowTaps {
  int64_t source = 0;
  size_t first = 0;
};

struct Thin {
  Axis height, width;
  int64_t images = 0, sources = 0, results = 0;
  DType type = DType::kUndefined, result = DType::kUndefined, bias = DType::kUndefined;
  bool weights_by_source = false;         // w is (sources, results, k), not (results, sources, k)
  int64_t first_column = 0, columns = 0;  // of a source row with its zeros
  int64_t rows = 0, source_rows = 0;      // of a tile
  std::vector<RowTaps> met;
  std::vector<std::vector<Tap>> lists;
  int64_t weights_size = 0, phase_size = 0, row_size = 0, room = 0, slots = 1;

  int64_t taps() const { return height.kernel * width.kernel; }
  int64_t tiles() const { return (height.results + rows - 1) / rows; }
  size_t workspace() const {
    return static_cast<size_t>(weights_size + slots * room) * sizeof(float);
  }
  /// The source rows of result rows [begin, end).
  Range rows_met(int64_t begin, int64_t end) const {
    const Range reach = height.reach(begin, end);
    const int64_t first = std::clamp<int64_t>(reach.first, 0, height.sources);
    return {first, std::clamp<int64_t>(reach.last, first, height.sources)};
  }

  std::string plan_tiles(int threads);
  void list_taps();
  void add_lists(int64_t row, const RowTaps& taps);
  void pack(const std::byte* w, float* to) const;
  void read(const std::byte* x, int64_t image, const Range& met_rows, float* to) const;
  void merge_phases(const float* from, float* to) const;
  void write_row(const KernelBuffers& buffers, int64_t image, int64_t row, const float* sums,
                 float* line) const;
  void unit(const KernelBuffers& buffers, int64_t index, const float* start, float* mine) const;
  void run(const KernelBuffers& buffers, int threads) const;
};

std::string Thin::plan_tiles(int threads) {
  const Range reach = width.reach(0, width.results);
  first_column = reach.first;
  columns = (reach.last - reach.first + 2 * kLanes) / kLanes * kLanes + kLanes;
  for (rows = height.results;; rows = (rows + 1) / 2) {
    source_rows = 0;
    for (int64_t row = 0; row < height.results; row += rows) {
      const Range range = rows_met(row, std::min(row + rows, height.results));
      source_rows = std::max(source_rows, range.last - range.first);
    }
    if (rows == 1 || sources * source_rows * columns <= kTileFloats) break;
  }
  const int64_t floats = sources * source_rows * columns;
  if (floats > 8 * kTileFloats) return "rows too long for the caches";
  weights_size = (sources * taps() * results + kLanes - 1) / kLanes * kLanes;
  const int64_t in_phase = (width.results + width.phases() - 1) / width.phases();
  phase_size = (in_phase + kLanes - 1) / kLanes * kLanes;
  row_size = width.phases() * phase_size;
  room = floats + (results + 1) * row_size;
  slots = std::min<int64_t>(threads, images * tiles());
  return {};
}

void Thin::add_lists(int64_t row, const RowTaps& at) {
  for (int64_t phase = 0; phase < width.phases(); ++phase) {
    std::vector<Tap>& list = lists.emplace_back();
    for (int64_t s = 0; s < sources; ++s) {
      for (int64_t kh = 0; kh < height.kernel; ++kh) {
        int64_t h = 0, w = 0;
        if (!height.meets(row, kh, &h) || !height.within(h)) continue;
        for (int64_t kw = 0; kw < width.kernel; ++kw) {
          if (!width.meets(phase, kw, &w)) continue;
          const int64_t x = (s * source_rows + h - at.source) * columns + w - first_column;
          const int64_t weight = ((s * height.kernel + kh) * width.kernel + kw) * results;
          list.push_back({static_cast<int32_t>(x), static_cast<int32_t>(weight)});
        }
      }
    }
  }
}

/// Rows that meet the same rows of the kernel, as far apart, share their lists.
void Thin::list_taps() {
  std::map<std::vector<int64_t>, size_t> known;
  for (int64_t row = 0; row < height.results; ++row) {
    RowTaps at;
    std::vector<int64_t> key;
    for (int64_t kh = 0; kh < height.kernel; ++kh) {
      int64_t h = 0;
      if (!height.meets(row, kh, &h) || !height.within(h)) continue;
      if (key.empty()) at.source = h;
      key.insert(key.end(), {kh, h - at.source});
    }
    const auto [found, fresh] = known.try_emplace(key, lists.size());
    at.first = found->second;
    if (fresh) add_lists(row, at);
    met.push_back(at);
  }
}

/// To (sources, taps, results).
void Thin::pack(const std::byte* w, float* to) const {
  for (int64_t s = 0; s < sources; ++s) {
    for (int64_t r = 0; r < results; ++r) {
      const int64_t from = (weights_by_source ? s * results + r : r * sources + s) * taps();
      for (int64_t k = 0; k < taps(); ++k)
        to[(s * taps() + k) * results + r] = static_cast<float>(read_real(w, type, from + k));
    }
  }
}

void Thin::read(const std::byte* x, int64_t image, const Range& met_rows, float* to) const {
  const int64_t left = -first_column;  // zeros, where positive
  const int64_t skipped = std::max<int64_t>(0, -left), put = std::max<int64_t>(0, left);
  const int64_t there = std::max<int64_t>(0, width.sources - skipped);
  const int64_t count = std::clamp<int64_t>(columns - put, 0, there);
  for (int64_t s = 0; s < sources; ++s) {
    float* line = to + s * source_rows * columns;
    const int64_t plane = (image * sources + s) * height.sources;
    for (int64_t row = met_rows.first; row < met_rows.last; ++row, line += columns) {
      std::fill_n(line, put, 0.0f);
      load_reals(x, type, (plane + row) * width.sources + skipped, count, line + put);
      std::fill_n(line + put + count, columns - put - count, 0.0f);
    }
  }
}

/// Column i of the result is column i / phases of phase i % phases.
void Thin::merge_phases(const float* from, float* to) const {
  const int64_t phases = width.phases(), pairs = width.results / 2;
  if (phases == 2) {
    const float* second = from + phase_size;
    for (int64_t i = 0; i < pairs; ++i) {
      to[2 * i] = from[i];
      to[2 * i + 1] = second[i];
    }
    if (width.results % 2 != 0) to[2 * pairs] = from[pairs];
    return;
  }
  for (int64_t phase = 0; phase < std::min(phases, width.results); ++phase) {
    const float* of = from + phase * phase_size;
    for (int64_t i = phase; i < width.results; i += phases) to[i] = *of++;
  }
}

/// `sums` is (results, phases, phase_size).
void Thin::write_row(const KernelBuffers& buffers, int64_t image, int64_t row, const float* sums,
                     float* line) const {
  const int64_t phases = width.phases();
  for (int64_t r = 0; r < results; ++r) {
    const float* from = sums + r * row_size;
    if (phases > 1) {
      merge_phases(from, line);
      from = line;
    }
    store_reals(from, width.results, result, buffers.outputs[0],
                ((image * results + r) * height.results + row) * width.results);
  }
}

void Thin::unit(const KernelBuffers& buffers, int64_t index, const float* start,
                float* mine) const {
  const int64_t image = index / tiles(), begin = index % tiles() * rows;
  const int64_t end = std::min(begin + rows, height.results);
  const Range sources_met = rows_met(begin, end);
  float *x = mine, *sums = x + sources * source_rows * columns, *line = sums + results * row_size;
  read(buffers.inputs[0], image, sources_met, x);
  const auto* w = reinterpret_cast<const float*>(buffers.workspace);
  const int64_t phases = width.phases();
  for (int64_t row = begin; row < end; ++row) {
    const RowTaps& at = met[static_cast<size_t>(row)];
    const float* from = x + (at.source - sources_met.first) * columns;
    for (int64_t phase = 0; phase < std::min(phases, width.results); ++phase) {
      const std::vector<Tap>& list = lists[at.first + static_cast<size_t>(phase)];
      const int64_t count = (width.results - phase + phases - 1) / phases;
      loops()->sum_taps(from, list.data(), static_cast<int64_t>(list.size()), w, results, start,
                        (count + kLanes - 1) / kLanes, sums + phase * phase_size, row_size);
    }
    write_row(buffers, image, row, sums, line);
  }
}

void Thin::run(const KernelBuffers& buffers, int threads) const {
  auto* weights = reinterpret_cast<float*>(buffers.workspace);
  pack(buffers.inputs[1], weights);
  std::array<float, kMostResults> start{};
  for (int64_t r = 0; bias != DType::kUndefined && r < results; ++r)
    start[static_cast<size_t>(r)] = static_cast<float>(read_real(buffers.inputs[2], bias, r));
  float* rooms = weights + weights_size;
  const int64_t units = images * tiles();
  parallel_blocks(slots, 1, threads, [&](int64_t slot, int64_t) {
    const int64_t end = (slot + 1) * units / slots;
    for (int64_t i = slot * units / slots; i < end; ++i)
      unit(buffers, i, start.data(), rooms + slot * room);
  });
}

/// Multiply-adds/ns of one core of an Intel Xeon in f32, oneDNN / here (halfnote-bench-convs):
///   16 -> 3 channels, 9×9, on 72×72           15 / 64
///   64 -> 3, 7×7, on 64×64                    15 / 55
///   64 -> 3, 3×3, on 64×64                    12 / 31
///   gradient for X of 3 -> 64, 7×7, stride 2  13 / 38
///   gradient for X of 3 -> 32, 4×4, stride 4   5 / 11
///   ConvTranspose 16 -> 3, 4×4, stride 2       9 / 32
std::string refusal(const KernelCall& call, const ConvPlan& plan, int64_t results, int64_t columns,
                    int64_t strides) {
  constexpr int64_t kFewColumns = 12, kFewTaps = 4, kFewOfResult = 16;
  if (loops() == nullptr) return "the CPU has neither AVX-512 nor AVX2 with FMA";
  if (plan.groups != 1) return "several groups";
  if (plan.in[0] != 1 || plan.out[0] != 1 || plan.kernel[0] != 1) return "three spatial dims";
  if (plan.x_size() == 0 || plan.y_size() == 0 || plan.w_size() == 0)
    return "an operand without elements";
  if (results > kMostResults) return "many result channels";
  if (columns < kFewColumns) return "rows of few columns";
  const int64_t sources = results == plan.filters ? plan.channels : plan.filters;
  const int64_t taps = plan.kernel_size() * sources;
  if (plan.kernel_size() < kFewTaps) return "a kernel of few taps";
  if (taps > kMostTaps) return "too many taps";
  if (taps < kFewOfResult * strides) return "few taps for a result";
  const DType type = call.inputs[0].dtype;
  if (!is_small_float(type)) return "elements of type " + std::string(short_name(type));
  if (call.inputs[1].dtype != type) return "operands of different types";
  if (call.domain.empty() && call.has_input(2) && call.inputs[2].dtype != type)
    return "a bias of another type";
  if (!is_small_float(call.outputs[0].dtype))
    return "a result of type " + std::string(short_name(call.outputs[0].dtype));
  if (is_blocked(call.inputs[0]) || is_blocked(call.outputs[0])) return "channel blocks";
  constexpr int64_t kFar = 4096;
  for (size_t d = 1; d < 3; ++d) {
    const int64_t reach = plan.kernel[d] * plan.dilation[d];
    if (reach > kFar || plan.pad_begin[d] > kFar) return "a kernel that reaches too far";
  }
  return {};
}

Prepared prepared(const KernelCall& call, const ConvPlan& plan, Thin thin) {
  thin.images = plan.batch;
  thin.type = call.inputs[0].dtype;
  thin.result = call.outputs[0].dtype;
  if (call.domain.empty() && call.has_input(2)) thin.bias = call.inputs[2].dtype;
  if (std::string why = thin.plan_tiles(call.threads); !why.empty()) return Prepared::no(why);
  thin.list_taps();
  auto shared = std::make_shared<const Thin>(std::move(thin));
  return make_kernel([shared, threads = call.threads](
                         const KernelBuffers& buffers) { shared->run(buffers, threads); },
                     shared->workspace());
}

Prepared prepare_forward(const KernelCall& call) {
  const ConvPlan plan = plan_conv(call);
  if (std::string why = refusal(call, plan, plan.filters, plan.out[2], 1); !why.empty())
    return Prepared::no(why);
  if (plan.stride[2] != 1) return Prepared::no("columns of x that do not follow one another");
  Thin thin;
  thin.height = depthwise::forward_axis(plan, 1);
  thin.width = depthwise::forward_axis(plan, 2);
  thin.sources = plan.channels;
  thin.results = plan.filters;
  return prepared(call, plan, std::move(thin));
}

template <ConvPlan (*plan_call)(const KernelCall&)>
Prepared prepare_gradient(const KernelCall& call) {
  const ConvPlan plan = plan_call(call);
  if (std::string why = refusal(call, plan, plan.channels, plan.in[2] / plan.stride[2],
                                plan.stride[1] * plan.stride[2]);
      !why.empty())
    return Prepared::no(why);
  Thin thin;
  thin.height = depthwise::gradient_axis(plan, 1);
  thin.width = depthwise::gradient_axis(plan, 2);
  thin.sources = plan.filters;
  thin.results = plan.channels;
  thin.weights_by_source = true;
  return prepared(call, plan, std::move(thin));
}

}  // namespace

std::vector<KernelRow> few_results_rows() {
  constexpr std::string_view kName = "fast.conv_few_results";
  return {
      {"", "Conv", kName, prepare_forward},
      {"", "ConvTranspose", kName, prepare_gradient<plan_conv_transpose>},
      {"ai.halfnote", "ConvGradInput", kName, prepare_gradient<plan_conv_grad_input>},
  };
}

}  // namespace halfnote::cpu::thin
