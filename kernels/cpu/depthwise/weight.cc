// The gradient of a depthwise convolution for its weights: a multiply-add of lines of 16 channels
// for each pixel and tap, summed in registers. The images go in slices that the shape alone decides
// upon, whose sums are added in order: the same bits on any number of threads.
#include "kernels/cpu/depthwise/choice.h"
#include "kernels/cpu/depthwise/rows.h"
#include "kernels/cpu/depthwise/tiles.h"

namespace halfnote::cpu::depthwise {

namespace {

/// Units (a block of channels in a slice of images) at least, if there are so many images.
constexpr int64_t kMinUnits = 32;

/// Taps that are written at a time.
constexpr int64_t kTapPiece = 64;

/// Neighbouring rows of dY that meet rows [first, last) of the kernel.
struct RowRun {
  int64_t row = 0, rows = 0;
  Range kernel;
};

struct WeightGradient {
  Axis height, width;  // from dY to x
  Planes dy, x;
  DType result = DType::kUndefined;
  int64_t filters = 0, per_channel = 1, images = 0;
  Tiling tiling;
  Range kernel_columns;  // those that meet x at all
  int64_t slices = 1, slice_images = 0, slots = 1, room = 0, x_room = 0, dy_room = 0;

  int64_t blocks() const { return (filters + kLanes - 1) / kLanes; }
  int64_t taps() const { return height.kernel * width.kernel; }
  int64_t sums_size() const { return taps() * kLanes; }  // of a unit
  size_t workspace() const {
    return static_cast<size_t>(blocks() * slices * sums_size() + slots * room) * sizeof(float);
  }

  void plan_work(int threads);
  RowRun run_from(const Box& box, int64_t row) const;
  void tile(const KernelBuffers& buffers, int64_t image, int64_t block, const Box& box, float* mine,
            float* sums) const;
  void write(float* sums, int64_t block, std::byte* to) const;
  void run(const KernelBuffers& buffers, int threads) const;
};

void WeightGradient::plan_work(int threads) {
  const int64_t wanted = std::min(images, (kMinUnits + blocks() - 1) / blocks());
  slice_images = (images + wanted - 1) / wanted;
  slices = (images + slice_images - 1) / slice_images;
  x_room = tiling.source_lines * kLanes;
  dy_room = tiling.result_lines * kLanes;
  room = x_room + dy_room + kLanes +
         std::max(x.room(tiling.source_lines), dy.room(tiling.result_lines));
  slots = std::min<int64_t>(threads, blocks() * slices);
  kernel_columns = {width.kernel, 0};
  for (int64_t k = 0; k < width.kernel; ++k) {
    const Range met = outputs_within(0, width.sources, width.stride, k * width.dilation - width.pad,
                                     width.results);
    if (met.empty()) continue;
    kernel_columns = {std::min(kernel_columns.first, k), k + 1};
  }
}

/// The longest run of rows of `box` from `row` on.
RowRun WeightGradient::run_from(const Box& box, int64_t row) const {
  const auto met = [&](int64_t r) {
    return outputs_within(0, height.sources, height.dilation, r * height.stride - height.pad,
                          height.kernel);
  };
  RowRun run{row, 1, met(row)};
  while (run.row + run.rows < box.row + box.rows) {
    const Range next = met(run.row + run.rows);
    if (next.first != run.kernel.first || next.last != run.kernel.last) break;
    ++run.rows;
  }
  return run;
}

void WeightGradient::tile(const KernelBuffers& buffers, int64_t image, int64_t block,
                          const Box& box, float* mine, float* sums) const {
  const Box from = tiling.sources(height, width, box);
  float *lines = mine, *g = lines + x_room, *spare = g + dy_room;
  read_lines(x, buffers.inputs[1], image, LanePlanes(block, filters, 1, per_channel, 0), from,
             lines, spare);
  read_lines(dy, buffers.inputs[0], image, LanePlanes(block, filters, 1, 1, 0), box, g, spare);
  Products p;
  p.columns = box.columns;
  p.dy_row = box.columns * kLanes;
  p.x_row = height.stride * from.columns * kLanes;
  p.x_column = width.stride * kLanes;
  p.x_kernel_row = height.dilation * from.columns * kLanes;
  p.x_kernel_column = width.dilation * kLanes;
  p.kernel_columns = kernel_columns.last - kernel_columns.first;
  p.sums_row = width.kernel * kLanes;
  for (int64_t row = box.row; row < box.row + box.rows;) {
    const RowRun run = run_from(box, row);
    row += run.rows;
    if (run.kernel.empty() || kernel_columns.empty()) continue;
    const int64_t met = run.row * height.stride + run.kernel.first * height.dilation - height.pad;
    p.rows = run.rows;
    p.kernel_rows = run.kernel.last - run.kernel.first;
    p.dy = g + (run.row - box.row) * p.dy_row;
    p.x =
        lines + ((met - from.row) * from.columns + kernel_columns.first * width.dilation) * kLanes;
    loops()->add_products(p,
                          sums + (run.kernel.first * width.kernel + kernel_columns.first) * kLanes);
  }
}

/// The sums of all slices of a block, added in order, are (taps, 16): they go to (filters, taps).
void WeightGradient::write(float* sums, int64_t block, std::byte* to) const {
  for (int64_t slice = 1; slice < slices; ++slice) {
    const float* more = sums + slice * sums_size();
    for (int64_t i = 0; i < sums_size(); ++i) sums[i] += more[i];
  }
  const int64_t lanes = std::min(kLanes, filters - block * kLanes);
  std::array<float, kLanes * kTapPiece> turned;
  std::array<float*, kLanes> lane;
  for (int64_t first = 0; first < taps(); first += kTapPiece) {
    const int64_t count = std::min(kTapPiece, taps() - first);
    for (int64_t l = 0; l < kLanes; ++l) lane[static_cast<size_t>(l)] = turned.data() + l * count;
    loops()->to_planes(sums + first * kLanes, count, lane.data(), 0, lanes);
    if (count == taps()) {
      store_reals(turned.data(), lanes * count, result, to, block * kLanes * count);
      continue;
    }
    for (int64_t l = 0; l < lanes; ++l) {
      store_reals(turned.data() + l * count, count, result, to,
                  (block * kLanes + l) * taps() + first);
    }
  }
}

void WeightGradient::run(const KernelBuffers& buffers, int threads) const {
  auto* sums = reinterpret_cast<float*>(buffers.workspace);
  const int64_t units = blocks() * slices;
  float* rooms = sums + units * sums_size();
  parallel_blocks(slots, 1, threads, [&](int64_t slot, int64_t) {
    const int64_t end = (slot + 1) * units / slots;
    for (int64_t unit = slot * units / slots; unit < end; ++unit) {
      float* mine = sums + unit * sums_size();
      std::fill_n(mine, sums_size(), 0.0f);
      const int64_t block = unit / slices, first = unit % slices * slice_images;
      for (int64_t image = first; image < std::min(images, first + slice_images); ++image) {
        for (int64_t t = 0; t < tiling.count(); ++t) {
          tile(buffers, image, block, tiling.results(height, width, t), rooms + slot * room, mine);
        }
      }
    }
  });
  parallel_blocks(blocks(), 4, threads, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      write(sums + block * slices * sums_size(), block, buffers.outputs[0]);
  });
}

/// Input 0 is dY, input 1 is X, output 0 is dW.
template <Wanted wanted>
Prepared prepare(const KernelCall& call) {
  const ConvPlan plan = plan_conv_grad_weight(call);
  constexpr int64_t kLongLine = int64_t{1} << 15;  // a tap's sum over it is one chain of f32
  if (plan.out[2] > kLongLine) return Prepared::no("a sum too long for f32");
  if (std::string why = refusal(call, plan, Direction::kGradWeight, wanted); !why.empty())
    return Prepared::no(why);
  WeightGradient g;
  g.height = forward_axis(plan, 1);
  g.width = forward_axis(plan, 2);
  const DType type = call.inputs[0].dtype;
  g.dy = {type, is_blocked(call.inputs[0]), plan.filters, plan.out[1], plan.out[2]};
  g.x = {type, is_blocked(call.inputs[1]), plan.channels, plan.in[1], plan.in[2]};
  g.result = call.outputs[0].dtype;
  g.filters = plan.filters;
  g.per_channel = plan.group_filters();
  g.images = plan.batch;
  g.tiling = Tiling::plan(g.height, g.width, 1);
  if (std::string why = tile_refusal(g.tiling, 1); !why.empty()) return Prepared::no(why);
  g.plan_work(call.threads);
  return make_kernel(
      [g, threads = call.threads](const KernelBuffers& buffers) { g.run(buffers, threads); },
      g.workspace());
}

}  // namespace

std::vector<KernelRow> weight_rows() {
  return {{"ai.halfnote", "ConvGradWeight", kName, prepare<Wanted::kWhereItPays>}};
}

std::vector<KernelRow> other_weight_rows() {
  return {{"ai.halfnote", "ConvGradWeight", kOtherName, prepare<Wanted::kAnywhere>}};
}

}  // namespace halfnote::cpu::depthwise
