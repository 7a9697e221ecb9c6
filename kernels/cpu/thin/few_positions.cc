// Convolutions with few result positions and many channels (the last stages of a residual net on
// small images): a product for every image has a side of 4 or 16, and most of oneDNN's time goes
// into laying out weights that are used once. Here the positions of all images are one side:
//   Y (filters, positions)             = W (filters, channels·kernel) · windows of X
//   dX summed from (positions, channels·kernel) = dY (positions, filters) · W
//   dW (filters, channels·kernel)      = dY (filters, positions) · windows of X, turned
// W is read where it lies, once. The products are those of the table of kernels; what is gathered
// for them is small. Sums over overlapping windows are in the order of positions, then taps.
#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/thin/rows.h"

namespace halfnote::cpu::thin {

namespace {

constexpr std::string_view kName = "fast.conv_few_positions";
constexpr int64_t kGrain = 1 << 14;  // elements gathered at a time by a thread

/// Where the elements of an image tensor lie, plain or in channel blocks.
struct Images {
  int64_t channels = 0, pixels = 0;
  bool blocked = false;

  Images() = default;
  Images(const Operand& operand, int64_t pixel_count)
      : channels(operand.shape[1]), pixels(pixel_count), blocked(is_blocked(operand)) {}
  int64_t at(int64_t image, int64_t channel, int64_t pixel) const {
    const int64_t first = image * channels * pixels;
    if (!blocked) return first + channel * pixels + pixel;
    return first + (channel / kBlockChannels * pixels + pixel) * kBlockChannels +
           channel % kBlockChannels;
  }
};

struct Few {
  ConvPlan plan;
  Images x, y;
  DType type = DType::kUndefined, result = DType::kUndefined, bias = DType::kUndefined;
  int threads = 1;
  std::vector<int32_t> met;  // by tap and output pixel: the pixel of x, −1 beyond the edges
  std::shared_ptr<const Kernel> product;
  size_t product_room = 0, left_room = 0;  // of the inner workspace, and of what comes behind it

  int64_t taps() const { return plan.kernel_size(); }
  int64_t window() const { return plan.channels * taps(); }
  int64_t positions() const { return plan.batch * plan.out_size(); }

  void find_met();
  template <class T>
  void gather_windows(const std::byte* from, T* to, int64_t tap_step, int64_t position_step) const;
  template <class T>
  void gather_results(const std::byte* from, T* to, int64_t filter_step,
                      int64_t position_step) const;
  void add_windows(const float* windows, float* sums) const;
  void write_results(const float* products, const KernelBuffers& buffers, float* room) const;
  void write_input(const float* sums, std::byte* to, float* room) const;
  void multiply(const std::byte* a, const std::byte* b, std::byte* c,
                const KernelBuffers& buffers) const {
    const std::array inputs{a, b};
    const std::array outputs{c};
    product->run({inputs, outputs, buffers.workspace});
  }
};

void Few::find_met() {
  const auto reach = [&](size_t d, int64_t o, int64_t k) {
    const int64_t at = o * plan.stride[d] + plan.offset(d, k);
    return at >= 0 && at < plan.in[d] ? at : -1;
  };
  ConvPlan::Dims k{}, o{};
  for (k[0] = 0; k[0] < plan.kernel[0]; ++k[0])
    for (k[1] = 0; k[1] < plan.kernel[1]; ++k[1])
      for (k[2] = 0; k[2] < plan.kernel[2]; ++k[2])
        for (o[0] = 0; o[0] < plan.out[0]; ++o[0])
          for (o[1] = 0; o[1] < plan.out[1]; ++o[1])
            for (o[2] = 0; o[2] < plan.out[2]; ++o[2]) {
              const int64_t d = reach(0, o[0], k[0]), h = reach(1, o[1], k[1]);
              const int64_t w = reach(2, o[2], k[2]);
              const bool inside = d >= 0 && h >= 0 && w >= 0;
              met.push_back(
                  static_cast<int32_t>(inside ? (d * plan.in[1] + h) * plan.in[2] + w : -1));
            }
}

/// Element (channel, tap) of position p goes to (channel·taps + tap)·tap_step + p·position_step.
template <class T>
void Few::gather_windows(const std::byte* from, T* to, int64_t tap_step,
                         int64_t position_step) const {
  const T* elements = reinterpret_cast<const T*>(from);
  const int64_t out = plan.out_size(),
                grain = std::max<int64_t>(1, kGrain / (taps() * positions()));
  parallel_blocks(plan.channels, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t k = 0; k < taps(); ++k) {
        const int32_t* pixel = met.data() + k * out;
        T* line = to + (c * taps() + k) * tap_step;
        for (int64_t n = 0; n < plan.batch; ++n) {
          for (int64_t o = 0; o < out; ++o, line += position_step)
            *line = pixel[o] < 0 ? T{} : elements[x.at(n, c, pixel[o])];
        }
      }
    }
  });
}

/// Element (filter, position) of y.
template <class T>
void Few::gather_results(const std::byte* from, T* to, int64_t filter_step,
                         int64_t position_step) const {
  const T* elements = reinterpret_cast<const T*>(from);
  const int64_t out = plan.out_size(), grain = std::max<int64_t>(1, kGrain / positions());
  parallel_blocks(plan.filters, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      T* line = to + f * filter_step;
      for (int64_t n = 0; n < plan.batch; ++n) {
        for (int64_t o = 0; o < out; ++o, line += position_step) *line = elements[y.at(n, f, o)];
      }
    }
  });
}

/// `windows` (positions, channels, taps) onto `sums` (images, pixels, channels).
void Few::add_windows(const float* windows, float* sums) const {
  const int64_t out = plan.out_size(), in = plan.in_size(), channels = plan.channels;
  parallel_blocks(plan.batch, 1, threads, [&](int64_t begin, int64_t end) {
    std::fill(sums + begin * in * channels, sums + end * in * channels, 0.0f);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t o = 0; o < out; ++o) {
        const float* window_of = windows + (n * out + o) * window();
        for (int64_t k = 0; k < taps(); ++k) {
          const int32_t pixel = met[static_cast<size_t>(k * out + o)];
          if (pixel < 0) continue;
          float* line = sums + (n * in + pixel) * channels;
          for (int64_t c = 0; c < channels; ++c) line[c] += window_of[c * taps() + k];
        }
      }
    }
  });
}

/// (filters, positions) to y, with the bias. `room` for an image.
void Few::write_results(const float* products, const KernelBuffers& buffers, float* room) const {
  const int64_t out = plan.out_size(), all = positions();
  const int64_t together = y.blocked ? kBlockChannels : 1;
  parallel_blocks(plan.filters / together, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * together; first < end * together; first += together) {
      float* lines = room + first * out;
      for (int64_t n = 0; n < plan.batch; ++n) {
        for (int64_t i = 0; i < together; ++i) {
          const float* line = products + (first + i) * all + n * out;
          const float b = bias == DType::kUndefined
                              ? 0.0f
                              : static_cast<float>(read_real(buffers.inputs[2], bias, first + i));
          for (int64_t o = 0; o < out; ++o) lines[o * together + i] = line[o] + b;
        }
        store_reals(lines, together * out, result, buffers.outputs[0], y.at(n, first, 0));
      }
    }
  });
}

/// (images, pixels, channels) to x. `room` for an image.
void Few::write_input(const float* sums, std::byte* to, float* room) const {
  const int64_t in = plan.in_size(), channels = plan.channels;
  const int64_t together = x.blocked ? kBlockChannels : 1;
  parallel_blocks(channels / together, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * together; first < end * together; first += together) {
      float* lines = room + first * in;
      for (int64_t n = 0; n < plan.batch; ++n) {
        for (int64_t p = 0; p < in; ++p) {
          const float* line = sums + (n * in + p) * channels + first;
          std::copy_n(line, together, lines + p * together);
        }
        store_reals(lines, together * in, result, to, x.at(n, first, 0));
      }
    }
  });
}

/// Milliseconds of one core of an Intel Xeon in f32, the best row of oneDNN, plain or in channel
/// blocks / here, in channel blocks where there are any (halfnote-bench-convs few):
///                                                  Y            dX           dW
///   1024 -> 2048, 1×1, 4 images to 2×2             1.85 / 0.62  2.37 / 1.22  1.85 / 0.86
///   the same with stride 2                         1.88 / 0.63  2.29 / 1.26  1.94 / 0.83
///   512 -> 512, 3×3, 8 images of 2×2               3.03 / 1.15  3.01 / 1.87  6.68 / 2.80
///   256 -> 512, 3×3, stride 2, 8 images to 2×2     1.71 / 0.60  1.66 / 0.68  3.19 / 0.71
///   320 -> 1280, 1×1, 16 images of 1×1             0.40 / 0.27  0.40 / 0.18  0.68 / 0.13
///   512 -> 512, 3×3, one image of 7×7              3.40 / 2.45  3.01 / 2.58  4.52 / 2.54
///   1024 -> 1024, 1×1, 4 images of 4×4             1.27 / 1.07  1.46 / 1.45  1.42 / 1.65
///   1024 -> 512, 1×1, 8 images of 4×4              1.18 / 1.34  1.04 / 1.40  1.43 / 2.06
///   128 -> 128, 3×3, 2 images of 4×4               0.10 / 0.11  0.08 / 0.07  0.15 / 0.11
/// in bf16, multiplied in f32, the ratios are alike.
std::string refusal(const KernelCall& call, const ConvPlan& plan) {
  constexpr int64_t kMostPositions = 64, kMostOfGradients = 56, kManyChannels = 64;
  constexpr int64_t kMuchWeight = int64_t{1} << 18, kMostTaps = 64, kMostPixels = 4096;
  if (plan.groups != 1) return "several groups";
  if (plan.x_size() == 0 || plan.y_size() == 0 || plan.w_size() == 0)
    return "an operand without elements";
  const int64_t most = call.op == "Conv" ? kMostPositions : kMostOfGradients;
  if (plan.batch * plan.out_size() > most) return "many result positions";
  if (plan.in_size() > kMostPixels || plan.kernel_size() > kMostTaps) return "large windows";
  if (plan.channels < kManyChannels || plan.filters < kManyChannels || plan.w_size() < kMuchWeight)
    return "few weights";
  const DType type = call.inputs[0].dtype;
  if (!is_small_float(type)) return "elements of type " + std::string(short_name(type));
  if (call.inputs[1].dtype != type) return "operands of different types";
  if (call.domain.empty() && call.has_input(2) && call.inputs[2].dtype != type)
    return "a bias of another type";
  if (!is_small_float(call.outputs[0].dtype))
    return "a result of type " + std::string(short_name(call.outputs[0].dtype));
  return {};
}

Operand matrix(DType type, int64_t rows, int64_t columns) {
  return {type, {rows, columns}, {}, nullptr};
}

Few few_of(const KernelCall& call, const ConvPlan& plan, const Operand& x, const Operand& y) {
  Few few;
  few.plan = plan;
  few.x = Images(x, plan.in_size());
  few.y = Images(y, plan.out_size());
  few.type = call.inputs[0].dtype;
  few.result = call.outputs[0].dtype;
  few.threads = call.threads;
  if (call.domain.empty() && call.has_input(2)) few.bias = call.inputs[2].dtype;
  few.find_met();
  return few;
}

/// The inner product; empty if it is there.
std::string find_product(Few& few, const Operand& a, const Operand& b, const Operand& c) {
  const Attributes none;
  KernelCall inner{.domain = "ai.halfnote", .op = "MatMul", .attributes = &none};
  inner.threads = few.threads;
  inner.inputs = {a, b};
  inner.outputs = {c};
  KernelChoice choice = cpu_kernels().choose(inner);
  if (choice.kernel == nullptr) return "no kernel for the product";
  few.product = std::move(choice.kernel);
  few.product_room = aligned(few.product->workspace_bytes());
  return {};
}

Prepared prepare_forward(const KernelCall& call) {
  const ConvPlan plan = plan_conv(call);
  if (std::string why = refusal(call, plan); !why.empty()) return Prepared::no(why);
  Few few = few_of(call, plan, call.inputs[0], call.outputs[0]);
  const int64_t window = few.window(), positions = few.positions();
  if (std::string why = find_product(few, matrix(few.type, plan.filters, window),
                                     matrix(few.type, window, positions),
                                     matrix(DType::kF32, plan.filters, positions));
      !why.empty())
    return Prepared::no(why);
  few.left_room = aligned(static_cast<size_t>(window * positions) * size_of(few.type));
  const size_t products_room =
      aligned(static_cast<size_t>(plan.filters * positions) * sizeof(float));
  const size_t room = few.product_room + few.left_room + products_room +
                      static_cast<size_t>(plan.filters * plan.out_size()) * sizeof(float);
  return for_element_size(few.type, [&]<class T>() {
    return make_kernel(
        [few, products_room](const KernelBuffers& buffers) {
          T* windows = part<T>(buffers, few.product_room);
          float* products = part<float>(buffers, few.product_room + few.left_room);
          float* lines = part<float>(buffers, few.product_room + few.left_room + products_room);
          few.gather_windows(buffers.inputs[0], windows, few.positions(), 1);
          few.multiply(buffers.inputs[1], reinterpret_cast<const std::byte*>(windows),
                       reinterpret_cast<std::byte*>(products), buffers);
          few.write_results(products, buffers, lines);
        },
        room);
  });
}

Prepared prepare_input(const KernelCall& call) {
  const ConvPlan plan = plan_conv_grad_input(call);
  if (std::string why = refusal(call, plan); !why.empty()) return Prepared::no(why);
  Few few = few_of(call, plan, call.outputs[0], call.inputs[0]);
  const int64_t window = few.window(), positions = few.positions();
  if (std::string why = find_product(few, matrix(few.type, positions, plan.filters),
                                     matrix(few.type, plan.filters, window),
                                     matrix(DType::kF32, positions, window));
      !why.empty())
    return Prepared::no(why);
  few.left_room = aligned(static_cast<size_t>(plan.filters * positions) * size_of(few.type));
  const size_t windows_room = aligned(static_cast<size_t>(window * positions) * sizeof(float));
  const size_t sums_room = aligned(static_cast<size_t>(plan.x_size()) * sizeof(float));
  const size_t room = few.product_room + few.left_room + windows_room + sums_room +
                      static_cast<size_t>(plan.channels * plan.in_size()) * sizeof(float);
  return for_element_size(few.type, [&]<class T>() {
    return make_kernel(
        [few, windows_room, sums_room](const KernelBuffers& buffers) {
          T* dy = part<T>(buffers, few.product_room);
          float* windows = part<float>(buffers, few.product_room + few.left_room);
          const size_t behind = few.product_room + few.left_room + windows_room;
          float *sums = part<float>(buffers, behind),
                *lines = part<float>(buffers, behind + sums_room);
          few.gather_results(buffers.inputs[0], dy, 1, few.plan.filters);
          few.multiply(reinterpret_cast<const std::byte*>(dy), buffers.inputs[1],
                       reinterpret_cast<std::byte*>(windows), buffers);
          few.add_windows(windows, sums);
          few.write_input(sums, buffers.outputs[0], lines);
        },
        room);
  });
}

Prepared prepare_weight(const KernelCall& call) {
  const ConvPlan plan = plan_conv_grad_weight(call);
  if (std::string why = refusal(call, plan); !why.empty()) return Prepared::no(why);
  Few few = few_of(call, plan, call.inputs[1], call.inputs[0]);
  const int64_t window = few.window(), positions = few.positions();
  if (std::string why = find_product(few, matrix(few.type, plan.filters, positions),
                                     matrix(few.type, positions, window),
                                     matrix(few.result, plan.filters, window));
      !why.empty())
    return Prepared::no(why);
  few.left_room = aligned(static_cast<size_t>(plan.filters * positions) * size_of(few.type));
  const size_t room = few.product_room + few.left_room +
                      static_cast<size_t>(window * positions) * size_of(few.type);
  return for_element_size(few.type, [&]<class T>() {
    return make_kernel(
        [few](const KernelBuffers& buffers) {
          T* dy = part<T>(buffers, few.product_room);
          T* windows = part<T>(buffers, few.product_room + few.left_room);
          few.gather_results(buffers.inputs[0], dy, few.positions(), 1);
          few.gather_windows(buffers.inputs[1], windows, 1, few.window());
          few.multiply(reinterpret_cast<const std::byte*>(dy),
                       reinterpret_cast<const std::byte*>(windows), buffers.outputs[0], buffers);
        },
        room);
  });
}

}  // namespace

std::vector<KernelRow> few_positions_rows() {
  return {
      {"", "Conv", kName, prepare_forward},
      {"ai.halfnote", "ConvGradInput", kName, prepare_input},
      {"ai.halfnote", "ConvGradWeight", kName, prepare_weight},
  };
}

}  // namespace halfnote::cpu::thin

namespace halfnote::cpu::blocked {

namespace {

/// x and y of the call, each as it comes.
BlockedOperands few_positions(const KernelCall& call) {
  BlockedOperands found;
  const bool weight = call.op == "ConvGradWeight";
  for (uint32_t i = 0; i < (weight ? 2u : 1u); ++i) {
    if (fit(call, 1u << i, 0)) found.inputs |= 1u << i;
  }
  if (!weight && fit(call, 0, 0b1)) found.outputs = 0b1;
  return found;
}

}  // namespace

std::vector<BlockedRow> few_positions_rows() {
  std::vector<BlockedRow> rows;
  for (const KernelRow& plain : thin::few_positions_rows()) {
    rows.push_back({{plain.domain, plain.op, "blocked.conv_few_positions", plain.prepare},
                    plain.name,
                    few_positions});
  }
  return rows;
}

}  // namespace halfnote::cpu::blocked
