// The gradient of the weights of 1×1 convolutions without padding, with operands in channel blocks:
// a product over the pixels of all images. oneDNN turns both operands around first, which takes up
// to half of its time in bf16.
//
// Each tile of dW is the sum over its pixels in order; where there are few tiles, over slices of
// images, which are added in order: the same bits on any number of threads.
#include "kernels/cpu/blocked/weight_1x1.h"

#include <array>
#include <memory>

#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu::blocked {

namespace {

/// Units that the work is cut into at least, if there are so many images.
constexpr int64_t kMinUnits = 32;

/// The cost table: whether oneDNN is left behind. GFLOP/s of one core of an AMD Zen 5, oneDNN /
/// here:
///
///   C -> F @ pixels      bf16        f32
///   64 -> 256 @ 56×56    197 / 274   177 / 171
///   256 -> 64 @ 56×56    185 / 277   137 / 169
///   128 -> 512 @ 28×28   263 / 328   203 / 157
///   512 -> 128 @ 28×28   248 / 328   177 / 142
///   256 -> 1024 @ 14×14  369 / 331   206 / 177
///   1024 -> 256 @ 14×14  350 / 329   193 / 171
///   512 -> 2048 @ 7×7    333 / 325   205 / 181
bool is_faster(const ConvPlan& plan, DType type) {
  constexpr int64_t kSomePixels = 400, kManyPixels = 2000;
  if (type == DType::kBF16) return plan.out_size() >= kSomePixels;
  return plan.out_size() >= kManyPixels && plan.filters < plan.channels;
}

int64_t tiles_of(int64_t count, int64_t tile) { return (count + tile - 1) / tile; }

struct Weight1x1 {
  ConvPlan plan;
  DType type = DType::kUndefined;
  DType result = DType::kUndefined;
  int64_t slices = 1, slice_images = 0;
  std::shared_ptr<const std::vector<int64_t>> x_pixels;

  const WeightLoops& loops() const { return *weight_loops_for(type); }
  int64_t pixels() const { return plan.out_size(); }
  int64_t in_pixels() const { return plan.in_size(); }
  int64_t across() const { return tiles_of(plan.channels, kTileChannels); }
  int64_t tiles() const { return across() * tiles_of(plan.filters, kTileFilters); }
  int64_t size() const { return plan.filters * plan.channels; }
  size_t workspace() const { return static_cast<size_t>(slices * size()) * sizeof(float); }

  void cut() {
    const int64_t wanted = std::min(plan.batch, tiles_of(kMinUnits, tiles()));
    slice_images = tiles_of(plan.batch, wanted);
    slices = tiles_of(plan.batch, slice_images);
  }

  /// The line in X that each output pixel meets.
  void find_pixels() {
    auto found = std::make_shared<std::vector<int64_t>>();
    for (int64_t d = 0; d < plan.out[0]; ++d) {
      for (int64_t h = 0; h < plan.out[1]; ++h) {
        const int64_t row = (d * plan.stride[0] * plan.in[1] + h * plan.stride[1]) * plan.in[2];
        for (int64_t w = 0; w < plan.out[2]; ++w) found->push_back(row + w * plan.stride[2]);
      }
    }
    x_pixels = std::move(found);
  }

  /// The lines of both operands of a tile that are packed at a time.
  struct Piece {
    std::array<std::array<int64_t, kTilePixels>, 2> lines;
    std::array<PixelLines, 2> operands;  // dY and X
    int64_t end = 0;                     // the first pixel behind, counted through the images

    int64_t count() const { return operands[0].count; }
  };
  struct Tile {
    int64_t filter, filter_blocks, channel, channel_blocks;
  };

  void find_lines(const KernelBuffers& buffers, const Tile& tile, int64_t first, int64_t last,
                  Piece& piece) const {
    const int64_t count = std::min(kTilePixels, last - first);
    const int64_t filters = plan.filters / kBlockChannels,
                  channels = plan.channels / kBlockChannels;
    for (int64_t i = 0; i < count;) {
      const int64_t image = (first + i) / pixels(), pixel = (first + i) % pixels();
      const int64_t run = std::min(count - i, pixels() - pixel);
      const int64_t dy = (image * filters + tile.filter / kBlockChannels) * pixels() + pixel;
      const int64_t x = (image * channels + tile.channel / kBlockChannels) * in_pixels();
      const int64_t* met = x_pixels->data() + pixel;
      for (int64_t k = 0; k < run; ++k, ++i) {
        piece.lines[0][i] = dy + k;
        piece.lines[1][i] = x + met[k];
      }
    }
    piece.operands[0] = {buffers.inputs[0], piece.lines[0].data(), count, pixels(),
                         tile.filter_blocks};
    piece.operands[1] = {buffers.inputs[1], piece.lines[1].data(), count, in_pixels(),
                         tile.channel_blocks};
    piece.end = first + count;
  }

  /// One tile over one slice of images.
  void unit(const KernelBuffers& buffers, int64_t index) const {
    const int64_t slice = index / tiles(), tile = index % tiles();
    const int64_t f = tile / across() * kTileFilters, c = tile % across() * kTileChannels;
    const int64_t filter_blocks = std::min(kTileFilters, plan.filters - f) / kBlockChannels;
    const int64_t channel_blocks = std::min(kTileChannels, plan.channels - c) / kBlockChannels;
    float* sums =
        reinterpret_cast<float*>(buffers.workspace) + slice * size() + f * plan.channels + c;
    for (int64_t row = 0; row < filter_blocks * kBlockChannels; ++row) {
      std::fill_n(sums + row * plan.channels, channel_blocks * kBlockChannels, 0.0f);
    }
    alignas(64) std::array<std::byte, kTileFilters * kTilePixels * 4> dy_room;
    alignas(64) std::array<std::byte, kTileChannels * kTilePixels * 4> x_room;
    const int64_t first = slice * slice_images * pixels();
    const int64_t last = std::min(plan.batch, (slice + 1) * slice_images) * pixels();
    std::array<Piece, 2> pieces;
    find_lines(buffers, {f, filter_blocks, c, channel_blocks}, first, last, pieces[0]);
    for (size_t i = 0; pieces[i].count() > 0; i = 1 - i) {
      const Piece& now = pieces[i];
      Piece& next = pieces[1 - i];
      loops().pack(now.operands[0], dy_room.data());
      loops().pack(now.operands[1], x_room.data());
      find_lines(buffers, {f, filter_blocks, c, channel_blocks}, now.end, last, next);
      loops().multiply(dy_room.data(), filter_blocks, x_room.data(), channel_blocks, now.count(),
                       sums, plan.channels, next.operands.data());
    }
  }

  void run(const KernelBuffers& buffers, int threads) const {
    parallel_blocks(tiles() * slices, 1, threads,
                    [&](int64_t index, int64_t) { unit(buffers, index); });
    float* sums = reinterpret_cast<float*>(buffers.workspace);
    parallel_blocks(size(), kElementGrain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t slice = 1; slice < slices; ++slice) {
        const float* more = sums + slice * size();
        for (int64_t i = begin; i < end; ++i) sums[i] += more[i];
      }
      store_reals(sums + begin, end - begin, result, buffers.outputs[0], begin);
    });
  }
};

Prepared prepare(const KernelCall& call) {
  if (!is_blocked(call.inputs[0]) || !is_blocked(call.inputs[1]))
    return Prepared::no("an operand that is not in channel blocks");
  const DType type = call.inputs[0].dtype;
  if (weight_loops_for(type) == nullptr)
    return Prepared::no("no loops for " + std::string(short_name(type)));
  Weight1x1 weight{plan_conv_grad_weight(call), type, call.outputs[0].dtype};
  const ConvPlan& plan = weight.plan;
  constexpr ConvPlan::Dims kOnes{1, 1, 1};
  if (plan.groups != 1 || plan.kernel != kOnes) return Prepared::no("not a 1×1 convolution");
  for (size_t d = 0; d < 3; ++d) {
    const bool padded = plan.pad_begin[d] != 0 || (plan.out[d] - 1) * plan.stride[d] >= plan.in[d];
    if (padded) return Prepared::no("padding");
  }
  if (!is_faster(plan, type)) return Prepared::no("oneDNN is faster");
  weight.cut();
  weight.find_pixels();
  return make_kernel([weight, threads = call.threads](
                         const KernelBuffers& buffers) { weight.run(buffers, threads); },
                     weight.workspace());
}

BlockedOperands dy_and_x(const KernelCall& call) {
  BlockedOperands operands;
  if (fit(call, 0b11, 0)) operands = {0b11, 0, false, true};
  return operands;
}

}  // namespace

std::vector<BlockedRow> weight_1x1_rows() {
  return {
      {{"ai.halfnote", "ConvGradWeight", "blocked.conv_1x1", prepare}, "onednn.conv", dy_and_x}};
}

}  // namespace halfnote::cpu::blocked
