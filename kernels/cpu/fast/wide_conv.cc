// Convolutions of f32 with sums in f64, for small problems: forward, ConvTranspose, and the
// gradients for input and weights. Each is a matrix product for every group, whose right operand is
// gathered from the images a block at a time:
//   forward          Y (filters, images·out)    = W (filters, channels·kernel) · windows of X
//   gradient of X    dX (channels, images·in)   = Wᵀ (channels, filters·kernel) · dY spread out
//   gradient of W    dW (filters, channels·kernel) = dY (filters, images·out) · windows of X,
//   turned
#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/wide_product.h"

namespace halfnote::cpu::fast {

namespace {

/// Neighbouring positions of one line (innermost dim) of one image.
struct Run {
  int64_t at = 0, count = 0;  // in the block
  int64_t image = 0, d = 0, h = 0, w = 0;
};

/// Positions [first, first + count) of `images` images of size `dims`, as runs.
struct Runs {
  std::array<Run, kWideDepth> run;
  size_t count = 0;

  Runs(const ConvPlan::Dims& dims, int64_t first, int64_t length) {
    for (int64_t at = 0; at < length;) {
      const int64_t position = first + at, w = position % dims[2], line = position / dims[2];
      const int64_t size = std::min(length - at, dims[2] - w);
      run[count++] = {
          at, size, line / (dims[0] * dims[1]), line / dims[1] % dims[0], line % dims[1], w};
      at += size;
    }
  }
  std::span<const Run> all() const { return {run.data(), count}; }
};

/// A tap of the kernel.
struct Tap {
  int64_t channel = 0;  // or filter
  ConvPlan::Dims k{};

  Tap(const ConvPlan& plan, int64_t index) : channel(index / plan.kernel_size()) {
    const int64_t line = index % plan.kernel_size() / plan.kernel[2];
    k = {line / plan.kernel[1], line % plan.kernel[1], index % plan.kernel[2]};
  }
  void step(const ConvPlan& plan) {
    for (size_t d = 3; d-- > 0; k[d] = 0) {
      if (++k[d] < plan.kernel[d]) return;
    }
    ++channel;
  }
};

/// What outputs `run` meet at `tap` in x (0 beyond the edges), `stride` apart in `to`.
void gather_window(const ConvPlan& p, const float* x, const Run& run, const Tap& tap, double* to,
                   int64_t stride) {
  const int64_t d = run.d * p.stride[0] + p.offset(0, tap.k[0]);
  const int64_t h = run.h * p.stride[1] + p.offset(1, tap.k[1]);
  Range range;
  if (d >= 0 && d < p.in[0] && h >= 0 && h < p.in[1]) {
    range = outputs_within(0, p.in[2], p.stride[2], p.offset(2, tap.k[2]) + run.w * p.stride[2],
                           run.count);
  }
  if (range.empty()) range = {};
  for (int64_t i = 0; i < range.first; ++i) to[i * stride] = 0;
  if (!range.empty()) {
    const float* line =
        x + (d * p.in[1] + h) * p.in[2] + run.w * p.stride[2] + p.offset(2, tap.k[2]);
    if (stride == 1 && p.stride[2] == 1) {
      for (int64_t i = range.first; i < range.last; ++i) to[i] = line[i];
    } else {
      for (int64_t i = range.first; i < range.last; ++i) to[i * stride] = line[i * p.stride[2]];
    }
  }
  for (int64_t i = range.last; i < run.count; ++i) to[i * stride] = 0;
}

/// The output that position `at` of dim d meets at kernel element k; -1 if none.
int64_t output_at(const ConvPlan& p, size_t d, int64_t at, int64_t k) {
  const int64_t moved = at - p.offset(d, k);
  if (moved < 0 || moved % p.stride[d] != 0 || moved / p.stride[d] >= p.out[d]) return -1;
  return moved / p.stride[d];
}

/// What inputs `run` meet at `tap` in dy (0 where nothing).
void gather_spread(const ConvPlan& p, const float* dy, const Run& run, const Tap& tap, double* to) {
  std::fill_n(to, run.count, 0.0);
  const int64_t d = output_at(p, 0, run.d, tap.k[0]), h = output_at(p, 1, run.h, tap.k[1]);
  if (d < 0 || h < 0) return;
  const float* line = dy + (d * p.out[1] + h) * p.out[2];
  const int64_t offset = p.offset(2, tap.k[2]) - run.w;
  const Range range = outputs_within(0, run.count, p.stride[2], offset, p.out[2]);
  if (p.stride[2] == 1) {
    for (int64_t o = range.first; o < range.last; ++o) to[o + offset] = line[o];
    return;
  }
  for (int64_t o = range.first; o < range.last; ++o) to[o * p.stride[2] + offset] = line[o];
}

/// Writes sums for positions [first, first + columns) of plane `plane` of all images.
void store_planes(float* y, int64_t planes, int64_t plane, int64_t size, int64_t first,
                  int64_t columns, const double* sums, double bias) {
  for (int64_t j = 0; j < columns;) {
    const int64_t image = (first + j) / size, at = (first + j) % size;
    const int64_t count = std::min(columns - j, size - at);
    float* to = y + (image * planes + plane) * size + at;
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(sums[j + i] + bias);
    j += count;
  }
}

struct Forward {
  const ConvPlan& plan;
  const KernelBuffers& buffers;
  bool has_bias = false;

  struct Right {
    const ConvPlan& plan;
    const float* x;  // of the group's first channel
    Runs runs;
    void read(int64_t k, int64_t count, double* to) const {
      Tap tap(plan, k);
      for (int64_t i = 0; i < count; ++i, tap.step(plan)) {
        for (const Run& run : runs.all()) {
          gather_window(plan, x + (run.image * plan.channels + tap.channel) * plan.in_size(), run,
                        tap, to + i * kWideColumns + run.at, 1);
        }
      }
    }
  };

  void left(int64_t group, int64_t row, int64_t k, int64_t count, double* to) const {
    const int64_t length = plan.group_channels() * plan.kernel_size();
    const float* w = buffers.in<float>(1) + (group * plan.group_filters() + row) * length + k;
    for (int64_t i = 0; i < count; ++i) to[i * kTallTile] = w[i];
  }
  Right right(int64_t group, int64_t column, int64_t columns) const {
    return {plan, buffers.in<float>(0) + group * plan.group_channels() * plan.in_size(),
            Runs(plan.out, column, columns)};
  }
  void store(int64_t group, int64_t row, int64_t column, int64_t columns,
             const double* sums) const {
    const int64_t filter = group * plan.group_filters() + row;
    store_planes(buffers.out<float>(0), plan.filters, filter, plan.out_size(), column, columns,
                 sums, has_bias ? static_cast<double>(buffers.in<float>(2)[filter]) : 0.0);
  }
};

/// Input 0 is dY, input 1 the weights, input 2 (of ConvTranspose) a bias, output 0 is dX.
struct InputGradient {
  const ConvPlan& plan;
  const KernelBuffers& buffers;
  bool has_bias = false;

  struct Right {
    const ConvPlan& plan;
    const float* dy;  // of the group's first filter
    Runs runs;
    void read(int64_t k, int64_t count, double* to) const {
      Tap tap(plan, k);
      for (int64_t i = 0; i < count; ++i, tap.step(plan)) {
        for (const Run& run : runs.all()) {
          gather_spread(plan, dy + (run.image * plan.filters + tap.channel) * plan.out_size(), run,
                        tap, to + i * kWideColumns + run.at);
        }
      }
    }
  };

  void left(int64_t group, int64_t row, int64_t k, int64_t count, double* to) const {
    const int64_t taps = plan.kernel_size(), channels = plan.group_channels();
    const float* w = buffers.in<float>(1) + (group * plan.group_filters() * channels + row) * taps;
    for (int64_t i = 0; i < count; ++i) {
      to[i * kTallTile] = w[(k + i) / taps * channels * taps + (k + i) % taps];
    }
  }
  Right right(int64_t group, int64_t column, int64_t columns) const {
    return {plan, buffers.in<float>(0) + group * plan.group_filters() * plan.out_size(),
            Runs(plan.in, column, columns)};
  }
  void store(int64_t group, int64_t row, int64_t column, int64_t columns,
             const double* sums) const {
    const int64_t channel = group * plan.group_channels() + row;
    store_planes(buffers.out<float>(0), plan.channels, channel, plan.in_size(), column, columns,
                 sums, has_bias ? static_cast<double>(buffers.in<float>(2)[channel]) : 0.0);
  }
};

/// Input 0 is dY, input 1 is X, output 0 is dW.
struct WeightGradient {
  const ConvPlan& plan;
  const KernelBuffers& buffers;
  bool has_bias = false;  // never

  struct Right {
    const ConvPlan& plan;
    const float* x;  // of the group's first channel
    int64_t column = 0, columns = 0;
    void read(int64_t k, int64_t count, double* to) const {
      const Runs runs(plan.out, k, count);
      Tap tap(plan, column);
      for (int64_t j = 0; j < columns; ++j, tap.step(plan)) {
        for (const Run& run : runs.all()) {
          gather_window(plan, x + (run.image * plan.channels + tap.channel) * plan.in_size(), run,
                        tap, to + run.at * kWideColumns + j, kWideColumns);
        }
      }
    }
  };

  void left(int64_t group, int64_t row, int64_t k, int64_t count, double* to) const {
    const int64_t filter = group * plan.group_filters() + row, size = plan.out_size();
    for (int64_t i = 0; i < count;) {
      const int64_t image = (k + i) / size, at = (k + i) % size;
      const int64_t length = std::min(count - i, size - at);
      const float* dy = buffers.in<float>(0) + (image * plan.filters + filter) * size + at;
      for (int64_t j = 0; j < length; ++j) to[(i + j) * kTallTile] = dy[j];
      i += length;
    }
  }
  Right right(int64_t group, int64_t column, int64_t columns) const {
    return {plan, buffers.in<float>(1) + group * plan.group_channels() * plan.in_size(), column,
            columns};
  }
  void store(int64_t group, int64_t row, int64_t column, int64_t columns,
             const double* sums) const {
    const int64_t length = plan.group_channels() * plan.kernel_size();
    float* dw = buffers.out<float>(0) + (group * plan.group_filters() + row) * length + column;
    for (int64_t j = 0; j < columns; ++j) dw[j] = static_cast<float>(sums[j]);
  }
};

std::string refusal(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0))
    return "an operand is missing";
  if (std::string why = conv_rank_refusal(call.inputs[0].shape); !why.empty()) return why;
  const size_t floats = call.domain.empty() ? call.inputs.size() : 2;  // ours: then a shape
  for (size_t i = 0; i < floats; ++i) {
    if (call.inputs[i].present() && call.inputs[i].dtype != DType::kF32)
      return "an operand of type " + std::string(short_name(call.inputs[i].dtype));
  }
  if (call.outputs[0].dtype == DType::kF32) return {};
  return "an output of type " + std::string(short_name(call.outputs[0].dtype));
}

WideShape shape_of(const ConvPlan& plan, const Forward*) {
  return {plan.groups, plan.group_filters(), plan.batch * plan.out_size(),
          plan.group_channels() * plan.kernel_size()};
}

/// With the zeros between strided outputs.
WideShape shape_of(const ConvPlan& plan, const InputGradient*) {
  return {plan.groups, plan.group_channels(), plan.batch * plan.in_size(),
          plan.group_filters() * plan.kernel_size()};
}

WideShape shape_of(const ConvPlan& plan, const WeightGradient*) {
  return {plan.groups, plan.group_filters(), plan.group_channels() * plan.kernel_size(),
          plan.batch * plan.out_size()};
}

template <class Source, ConvPlan (*plan_call)(const KernelCall&)>
Prepared prepare(const KernelCall& call) {
  if (std::string why = refusal(call); !why.empty()) return Prepared::no(why);
  const ConvPlan plan = plan_call(call);
  const WideShape shape = shape_of(plan, static_cast<const Source*>(nullptr));
  if (std::string why = wide_refusal(shape); !why.empty()) return Prepared::no(why);
  const bool has_bias = call.domain.empty() && call.has_input(2);
  return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
    wide_product(shape, threads, Source{plan, buffers, has_bias});
  });
}

}  // namespace

std::vector<KernelRow> wide_conv_rows() {
  constexpr std::string_view kName = "fast.conv_f64_sums";
  return {
      {"", "Conv", kName, prepare<Forward, plan_conv>},
      {"", "ConvTranspose", kName, prepare<InputGradient, plan_conv_transpose>},
      {"ai.halfnote", "ConvGradInput", kName, prepare<InputGradient, plan_conv_grad_input>},
      {"ai.halfnote", "ConvGradWeight", kName, prepare<WeightGradient, plan_conv_grad_weight>},
  };
}

}  // namespace halfnote::cpu::fast
