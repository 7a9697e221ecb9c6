// GroupNormalization, InstanceNormalization (a group for each channel) and their gradient on f32,
// f16 and bf16: a group of an image at a time, in pieces that stay in the first-level cache, so
// that memory is read once while a group fits the second level.
//
// Forward: the moments of pieces are merged in double; a result of f32 is rounded once, one of 16
// bits comes from f32. Gradient: mean and 1/σ are taken again from X; the sums of each channel
// make those of its group, and, added over the images in double, the gradients of scale and bias.
// Every group is summed in one order: the same bits on any number of threads.
//
// In short planes a scale that changes every few elements would cost a call for each: there scale
// and bias are spread over the elements of a channel first.
#include <cmath>

#include "kernels/cpu/fast/norm_parts.h"
#include "kernels/cpu/fast/parts.h"

namespace halfnote::cpu::fast {

namespace {

/// Planes below this are short: four vectors, the unrolled loop of VectorMath::gradient_sums.
constexpr int64_t kShortPlane = 64;
/// Channels of a parallel block where images are added up.
constexpr int64_t kChannels = 64;
/// Groups of 16 bits that are no longer become f32 once, others once for each time they are read.
constexpr int64_t kShortGroup = 4 * kPiece;

using GroupRoom = std::array<float, kShortGroup>;

/// The groups, the parameters of channels, and which group is whose.
struct Layout : Groups {
  int threads = 1;

  Layout() = default;
  Layout(const Groups& parts, int threads_) : Groups(parts), threads(threads_) {}
  bool is_short() const { return plane < kShortPlane; }
  int64_t size() const { return per_group() * plane; }
  int64_t first_channel(int64_t group) const { return group % groups * per_group(); }
  int64_t grain() const { return std::max<int64_t>(1, kElementGrain / size()); }
};

/// Scale or bias in f32, an element a channel; in short planes an element an element of an image.
class Parameter {
 public:
  Parameter() = default;
  Parameter(const Operand& operand, const Layout& layout, WorkspacePlan& workspace)
      : vector_(operand, workspace) {
    if (layout.is_short()) spread_ = workspace.add_elements<float>(layout.channels * layout.plane);
  }
  const float* read(const KernelBuffers& buffers, size_t input) const {
    return vector_.read(buffers, input);
  }
  /// Of a short plane.
  const float* spread(const Layout& layout, const KernelBuffers& buffers,
                      const float* values) const {
    float* to = part<float>(buffers, spread_);
    const int64_t grain = std::max<int64_t>(1, kElementGrain / layout.plane);
    parallel_blocks(layout.channels, grain, layout.threads, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c)
        std::fill_n(to + c * layout.plane, layout.plane, values[c]);
    });
    return to;
  }

 private:
  Vector vector_;
  size_t spread_ = 0;
};

/// y = (x − mean)·factor + shift for a plane of T or f32.
template <class From, class T>
void normalize_plane(const From* x, int64_t plane, double mean, double factor, double shift, T* y) {
  if constexpr (std::is_same_v<T, float>) {
    vector_math().normalize_exactly(x, plane, mean, factor, shift, y);
  } else {
    // The mean's rest, which f32 does not hold, goes into the shift.
    const auto high = static_cast<float>(mean);
    const double low = mean - static_cast<double>(high);
    Room from, to;
    for_pieces(plane, [&](int64_t at, int64_t size) {
      vector_math().normalize(load_block(x + at, size, from.data()), size, high,
                              static_cast<float>(factor), static_cast<float>(shift - low * factor),
                              to.data());
      store_block(to.data(), size, y + at);
    });
  }
}

/// `x` in T or f32.
template <class From, class T>
void normalize_group(const Layout& p, const float* scale, const float* bias, int64_t group,
                     const From* x, T* y) {
  Room room;
  const Moments moments = contiguous_moments(x, p.size(), room);
  const double inv_std = 1 / std::sqrt(moments.variance + p.epsilon);
  const int64_t first = p.first_channel(group);
  if (p.is_short()) {
    const int64_t at = first * p.plane;
    return write_line(x, p.size(), moments.mean, inv_std, scale + at, bias + at, room, y);
  }
  for (int64_t c = 0; c < p.per_group(); ++c) {
    normalize_plane(x + c * p.plane, p.plane, moments.mean,
                    static_cast<double>(scale[first + c]) * inv_std,
                    static_cast<double>(bias[first + c]), y + c * p.plane);
  }
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const Layout& p) {
  WorkspacePlan workspace;
  const Parameter scale(call.inputs[1], p, workspace), bias(call.inputs[2], p, workspace);
  const auto body = [=](const KernelBuffers& buffers) {
    const float *factors = scale.read(buffers, 1), *shifts = bias.read(buffers, 2);
    if (p.is_short()) {
      factors = scale.spread(p, buffers, factors);
      shifts = bias.spread(p, buffers, shifts);
    }
    parallel_blocks(p.count(), p.grain(), p.threads, [&](int64_t begin, int64_t end) {
      GroupRoom room;
      for (int64_t group = begin; group < end; ++group) {
        const T* x = buffers.in<T>(0) + group * p.size();
        T* y = buffers.out<T>(0) + group * p.size();
        if (p.size() <= kShortGroup) {
          normalize_group(p, factors, shifts, group, load_block(x, p.size(), room.data()), y);
        } else {
          normalize_group(p, factors, shifts, group, x, y);
        }
      }
    });
  };
  return make_kernel(body, workspace.size(),
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

// --- the gradient ---

struct Gradient {
  Layout layout;
  Parameter scale;
  DType d_scale = DType::kUndefined, d_bias = DType::kUndefined;
  bool has_dx = false;
  size_t sums = 0, products = 0;  // (N, C) in the workspace: Σ dY and Σ dY·(x − mean)/σ
};

/// Mean and 1/σ of a group, and what follows from its sums.
struct GroupState {
  float mean = 0;      // in f32,
  double rest = 0;     // and what that lacks
  double inverse = 0;  // 1/σ
  double offset = 0, slope = 0;
};

/// Σ dY and Σ dY·(x − state.mean) of each channel of a group.
template <class From>
void channel_sums(const Layout& p, const From* dy, const From* x, float mean, double* sums,
                  double* products) {
  const VectorMath& math = vector_math();
  Room dy_room, x_room;
  if (!p.is_short()) {
    for (int64_t c = 0; c < p.per_group(); ++c) {
      double sum = 0, product = 0;
      for_pieces(p.plane, [&](int64_t start, int64_t size) {
        const int64_t at = c * p.plane + start;
        math.gradient_sums(load_block(dy + at, size, dy_room.data()),
                           load_block(x + at, size, x_room.data()), size, mean, &sum, &product);
      });
      sums[c] = sum;
      products[c] = product;
    }
    return;
  }
  const int64_t runs = kPiece / p.plane;
  for (int64_t c = 0; c < p.per_group(); c += runs) {
    const int64_t now = std::min(runs, p.per_group() - c), at = c * p.plane;
    math.run_sums(load_block(dy + at, now * p.plane, dy_room.data()),
                  load_block(x + at, now * p.plane, x_room.data()), now, p.plane, mean, sums + c,
                  products + c);
  }
}

/// The sums of a group's channels, and what dX needs of them.
template <class From>
GroupState sum_group(const Layout& p, const float* scale, const From* dy, const From* x,
                     double* sums, double* products) {
  Room room;
  const Moments moments = contiguous_moments(x, p.size(), room);
  GroupState state;
  state.mean = static_cast<float>(moments.mean);
  state.rest = moments.mean - static_cast<double>(state.mean);
  state.inverse = 1 / std::sqrt(moments.variance + p.epsilon);
  channel_sums(p, dy, x, state.mean, sums, products);
  double sum = 0, product = 0;
  for (int64_t c = 0; c < p.per_group(); ++c) {
    products[c] = (products[c] - state.rest * sums[c]) * state.inverse;
    sum += sums[c] * static_cast<double>(scale[c]);
    product += products[c] * static_cast<double>(scale[c]);
  }
  const auto size = static_cast<double>(p.size());
  state.slope = product / size * state.inverse;
  state.offset = sum / size - state.rest * state.slope;
  return state;
}

/// dX = 1/σ·(dY·scale − offset − (x − mean)·slope) for a group; `scale` is spread in short planes.
template <class From, class T>
void input_gradient(const Layout& p, const GroupState& state, const float* scale, const From* dy,
                    const From* x, T* dx) {
  const VectorMath& math = vector_math();
  Room dy_room, x_room, g;
  const auto factor = static_cast<float>(state.inverse), offset = static_cast<float>(state.offset),
             slope = static_cast<float>(state.slope);
  if (p.is_short()) {
    for_pieces(p.size(), [&](int64_t at, int64_t size) {
      math.multiply(load_block(dy + at, size, dy_room.data()), scale + at, size, g.data());
      float* result = result_block(dx + at, dy_room.data());
      math.normalize_gradient(g.data(), load_block(x + at, size, x_room.data()), size, state.mean,
                              factor, offset, slope, result);
      store_block(result, size, dx + at);
    });
    return;
  }
  for (int64_t c = 0; c < p.per_group(); ++c) {
    for_pieces(p.plane, [&](int64_t start, int64_t size) {
      const int64_t at = c * p.plane + start;
      float* result = result_block(dx + at, g.data());
      math.scaled_gradient(load_block(dy + at, size, dy_room.data()),
                           load_block(x + at, size, x_room.data()), size, scale[c], state.mean,
                           factor, offset, slope, result);
      store_block(result, size, dx + at);
    });
  }
}

/// Writes the sums over all images.
void add_images(const Gradient& p, const KernelBuffers& buffers) {
  const int64_t channels = p.layout.channels;
  const auto add = [&](size_t from, DType type, size_t output) {
    if (type == DType::kUndefined) return;
    const double* rows = part<double>(buffers, from);
    parallel_blocks(channels, kChannels, p.layout.threads, [&](int64_t begin, int64_t end) {
      std::array<double, kChannels> total{};
      for (int64_t n = 0; n < p.layout.batch; ++n) {
        for (int64_t c = begin; c < end; ++c)
          total[static_cast<size_t>(c - begin)] += rows[n * channels + c];
      }
      store_reals(total.data(), end - begin, type, buffers.outputs[output], begin);
    });
  };
  add(p.products, p.d_scale, 1);
  add(p.sums, p.d_bias, 2);
}

/// All of one group: `from` is T or f32.
template <class From, class T>
void group_gradient(const Gradient& p, const KernelBuffers& buffers, int64_t group,
                    const float* scale, const float* spread, const From* dy, const From* x, T* dx) {
  const int64_t row = group * p.layout.per_group();  // n·C + first channel
  const int64_t channel = p.layout.first_channel(group);
  const GroupState state =
      sum_group(p.layout, scale + channel, dy, x, part<double>(buffers, p.sums) + row,
                part<double>(buffers, p.products) + row);
  if (!p.has_dx) return;
  const float* factors = spread ? spread + channel * p.layout.plane : scale + channel;
  input_gradient(p.layout, state, factors, dy, x, dx);
}

template <class T>
void all_groups(const Gradient& plan, const KernelBuffers& buffers) {
  const Layout& p = plan.layout;
  const float* scale = plan.scale.read(buffers, 2);
  const bool spreads = p.is_short() && plan.has_dx;
  const float* spread = spreads ? plan.scale.spread(p, buffers, scale) : nullptr;
  parallel_blocks(p.count(), p.grain(), p.threads, [&](int64_t begin, int64_t end) {
    GroupRoom dy_room, x_room;
    for (int64_t group = begin; group < end; ++group) {
      const int64_t at = group * p.size(), size = p.size();
      const T *dy = buffers.in<T>(0) + at, *x = buffers.in<T>(1) + at;
      T* dx = plan.has_dx ? buffers.out<T>(0) + at : nullptr;
      if (p.size() <= kShortGroup) {
        group_gradient(plan, buffers, group, scale, spread, load_block(dy, size, dy_room.data()),
                       load_block(x, size, x_room.data()), dx);
      } else {
        group_gradient(plan, buffers, group, scale, spread, dy, x, dx);
      }
    }
  });
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const Layout& layout) {
  WorkspacePlan workspace;
  Gradient plan;
  plan.layout = layout;
  plan.scale = Parameter(call.inputs[2], layout, workspace);
  plan.d_scale = output_type(call, 1);
  plan.d_bias = output_type(call, 2);
  plan.has_dx = call.has_output(0);
  plan.sums = workspace.add_elements<double>(layout.batch * layout.channels);
  plan.products = workspace.add_elements<double>(layout.batch * layout.channels);
  const auto body = [plan](const KernelBuffers& buffers) {
    all_groups<T>(plan, buffers);
    add_images(plan, buffers);
  };
  return make_kernel(body, workspace.size(),
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

/// `x` is the index of X; parameters follow from `first` on.
std::string refusal(const KernelCall& call, size_t x, size_t first) {
  if (call.inputs[x].size() == 0) return "a tensor without elements";
  for (size_t i = first; i < call.inputs.size(); ++i) {
    if (call.has_input(i) && call.inputs[i].dtype == DType::kF64) return "a parameter of type f64";
  }
  return {};
}

Prepared prepare_forward(const KernelCall& call) {
  Groups plan;
  if (std::string why = plan_group_norm(call, plan); !why.empty()) return Prepared::no(why);
  if (std::string why = refusal(call, 0, 1); !why.empty()) return Prepared::no(why);
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return forward_kernel<T>(call, {plan, call.threads});
  });
}

Prepared prepare_gradient(const KernelCall& call) {
  Groups plan;
  if (std::string why = plan_group_norm_grad(call, plan); !why.empty()) return Prepared::no(why);
  if (std::string why = refusal(call, 1, 2); !why.empty()) return Prepared::no(why);
  return for_small_float(call.inputs[1].dtype, [&]<class T>() {
    return gradient_kernel<T>(call, {plan, call.threads});
  });
}

}  // namespace

std::vector<KernelRow> group_norm_rows() {
  return {
      {"", "GroupNormalization", "fast.group_norm", prepare_forward},
      {"", "InstanceNormalization", "fast.group_norm", prepare_forward},
      {"ai.halfnote", "GroupNormalizationGrad", "fast.group_norm", prepare_gradient},
  };
}

}  // namespace halfnote::cpu::fast
