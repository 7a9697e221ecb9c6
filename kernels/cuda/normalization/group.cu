// GroupNormalization, InstanceNormalization and their gradient: a block of threads a group. The
// channels of a group and all their positions lie together. The forward keeps groups of up to 8192
// elements in registers, as LayerNormalization its lines; larger ones are read twice, and X and dY
// by the gradient, with sums in f64 of the distances from the first element (f64 itself takes a
// pass more for its mean).
#include "kernels/cuda/normalization/group.h"
#include "kernels/cuda/normalization/line_norm.h"
#include "kernels/cuda/normalization/parts.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr unsigned kGroupBlock = 256;

/// The groups, for kernels.
struct DeviceGroups {
  int64_t count = 0, per_group = 0, groups = 1, channels = 0;
  double epsilon = 0;
  Divisor plane;

  explicit DeviceGroups(const cpu::Groups& plan)
      : count(plan.count()),
        per_group(plan.per_group()),
        groups(plan.groups),
        channels(plan.channels),
        epsilon(plan.epsilon),
        plane(plan.plane),
        positions_(plan.plane) {}
  __host__ __device__ int64_t size() const { return per_group * positions_; }
  __device__ int64_t positions() const { return positions_; }
  /// The channel of element i of a group.
  __device__ int64_t channel(int64_t group, int64_t i) const {
    return group % groups * per_group + plane.quotient(i);
  }
  unsigned blocks() const { return line_blocks(count); }

 private:
  int64_t positions_ = 0;
};

/// The first element of a group, from which distances are small where all are alike.
template <class T>
__device__ double origin_of(const T* x, const DeviceGroups& g) {
  return g.size() > 0 ? static_cast<double>(load_number(x[0])) : 0;
}

/// Every thread of the block gets them.
template <class T>
__device__ Moments<double> moments_of(const T* x, const DeviceGroups& g) {
  const double count = static_cast<double>(g.size());
  double sum = 0, squares = 0;
  if constexpr (sizeof(T) < sizeof(double)) {
    const double origin = origin_of(x, g);
    for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) {
      const double distance = load_number(x[i]) - origin;
      sum += distance;
      squares += distance * distance;
    }
    sum = merge_block<AddNumbers, kGroupBlock>(sum);
    squares = merge_block<AddNumbers, kGroupBlock>(squares);
    return moments_of_sums(origin, sum, squares, count, g.epsilon);
  } else {
    for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) sum += load_number(x[i]);
    const double mean = merge_block<AddNumbers, kGroupBlock>(sum) / count;
    for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) {
      const double distance = load_number(x[i]) - mean;
      squares += distance * distance;
    }
    squares = merge_block<AddNumbers, kGroupBlock>(squares) / count;
    return {mean, 1 / math::sqrt(squares + g.epsilon)};
  }
}

/// A pack lies in one channel.
template <class T, int V, unsigned kLanes>
__global__ void __launch_bounds__(kHeldBlock)
    group_norm_held(const T* x, RealPointer scale, RealPointer bias, T* y, DeviceGroups g) {
  using M = Math<T>;
  constexpr int kPacks = kHeld<M> / V;
  constexpr int64_t kGroups = kHeldBlock / kLanes;
  for (int64_t group = blockIdx.x * kGroups + threadIdx.x / kLanes; group < g.count;
       group += gridDim.x * kGroups) {
    const int64_t first = group * g.size();
    Packed<T, V> own[kPacks];
    for_packs<V, kPacks, kLanes>(g.size(),
                                 [&](int k, int i) { own[k] = load_packed<V>(x + first + i); });
    const Moments<M> of =
        moments_of_line<LineNorm::kLayer, M, V, kPacks, kLanes>(own, g.size(), g.epsilon);
    for_packs<V, kPacks, kLanes>(g.size(), [&](int k, int i) {
      const int64_t channel = g.channel(group, i);
      const M factor = scale.load<M>(channel) * of.inv_std, shift = bias.load<M>(channel);
      M to[V];
      HN_UNROLL
      for (int v = 0; v < V; ++v) to[v] = (load_number(own[k].of[v]) - of.mean) * factor + shift;
      store_packed(y + first + i, pack_of<T>(to));
    });
  }
}

template <class T>
__global__ void __launch_bounds__(kGroupBlock)
    group_norm(const T* x, RealPointer scale, RealPointer bias, T* y, DeviceGroups g) {
  using M = Math<T>;
  for (int64_t group = blockIdx.x; group < g.count; group += gridDim.x) {
    const T* own = x + group * g.size();
    const Moments<double> moments = moments_of(own, g);
    const M mean = static_cast<M>(moments.mean);
    for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) {
      const int64_t channel = g.channel(group, i);
      const M factor = static_cast<M>(scale[channel] * moments.inv_std);
      const M value = (load_number(own[i]) - mean) * factor + static_cast<M>(bias[channel]);
      y[group * g.size() + i] = store_number<T>(value);
    }
  }
}

Prepared prepare_group_norm(const KernelCall& call) {
  cpu::Groups plan;
  if (std::string why = cpu::plan_group_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const DeviceGroups g(plan);
    const Lines lines{g.count, g.size()};
    const HeldLines held = HeldLines::plan<Math<T>>(lines, 0);
    return make_kernel([=, plane = plan.plane, scale_type = call.inputs[1].dtype,
                        bias_type = call.inputs[2].dtype](const KernelBuffers& buffers) {
      const T* x = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      const RealPointer scale{buffers.inputs[1], scale_type}, bias{buffers.inputs[2], bias_type};
      if (lines.length > kBlockLine<Math<T>>) {
        launch(stream_of(buffers), group_norm<T>, g.blocks(), kGroupBlock, 0, x, scale, bias, y, g);
        return;
      }
      const bool in_packs =
          plane % (16 / static_cast<int64_t>(sizeof(T))) == 0 && are_aligned<2>({x, y});
      for_held<T>(held, in_packs, [&]<int V, unsigned kLanes>() {
        launch(stream_of(buffers), group_norm_held<T, V, kLanes>,
               static_cast<unsigned>(held.blocks), kHeldBlock, 0, x, scale, bias, y, g);
      });
    });
  });
}

/// One group of one image: the sums of each of its channels, then dX. The threads of a block go
/// through the channels together. All but f64 take the moments on the way, and correct by them what
/// was summed as with a mean of the first element and a deviation of 1.
template <class T>
__global__ void __launch_bounds__(kGroupBlock)
    group_gradient(const T* dy, const T* x, RealPointer scale, double* d_scales, double* d_biases,
                   T* dx, DeviceGroups g) {
  constexpr bool kOnTheWay = sizeof(T) < sizeof(double);
  const double count = static_cast<double>(g.size());
  for (int64_t group = blockIdx.x; group < g.count; group += gridDim.x) {
    const int64_t first = group * g.size();
    const double origin = origin_of(x + first, g);
    Moments<double> moments = {origin, 1};
    if constexpr (!kOnTheWay) moments = moments_of(x + first, g);
    double sum = 0, product = 0, total = 0, squares = 0;
    for (int64_t c = 0; c < g.per_group; ++c) {
      double d_bias = 0, d_scale = 0;
      for (int64_t p = threadIdx.x; p < g.positions(); p += kGroupBlock) {
        const int64_t at = first + c * g.positions() + p;
        const double gradient = load_number(dy[at]);
        const double value = (load_number(x[at]) - moments.mean) * moments.inv_std;
        d_bias += gradient;
        d_scale += gradient * value;
        total += value;
        squares += value * value;
      }
      d_bias = merge_block<AddNumbers, kGroupBlock>(d_bias);
      d_scale = merge_block<AddNumbers, kGroupBlock>(d_scale);
      const double factor = scale[group % g.groups * g.per_group + c];
      sum += d_bias * factor;
      product += d_scale * factor;
      if (threadIdx.x == 0) {
        d_scales[group * g.per_group + c] = d_scale;  // (image, channel)
        d_biases[group * g.per_group + c] = d_bias;
      }
    }
    // Of nothing there are no moments, and the sums are 0 as they are.
    if (kOnTheWay && g.size() > 0) {
      total = merge_block<AddNumbers, kGroupBlock>(total);
      squares = merge_block<AddNumbers, kGroupBlock>(squares);
      moments = moments_of_sums(origin, total, squares, count, g.epsilon);
      const double shift = moments.mean - origin;
      product = (product - shift * sum) * moments.inv_std;
      __syncthreads();  // the sums of the channels are written
      for (int64_t c = threadIdx.x; c < g.per_group; c += kGroupBlock) {
        double& d_scale = d_scales[group * g.per_group + c];
        const double d_bias = d_biases[group * g.per_group + c];
        d_scale = (d_scale - shift * d_bias) * moments.inv_std;
      }
    }
    if (dx == nullptr) continue;
    for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) {
      const double centred = load_number(dy[first + i]) * scale[g.channel(group, i)] - sum / count;
      const double normalized = (load_number(x[first + i]) - moments.mean) * moments.inv_std;
      const double value = moments.inv_std * (centred - normalized * (product / count));
      dx[first + i] = store_number<T>(static_cast<Math<T>>(value));
    }
  }
}

Prepared prepare_group_grad(const KernelCall& call) {
  cpu::Groups plan;
  if (std::string why = cpu::plan_group_norm_grad(call, plan); !why.empty()) {
    return Prepared::no(why);
  }
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    const auto body = [g = DeviceGroups(plan), batch = plan.batch, scale = call.inputs[2].dtype,
                       d_scale = type_of(call, 1),
                       d_bias = type_of(call, 2)](const KernelBuffers& buffers) {
      auto* d_scales = reinterpret_cast<double*>(buffers.workspace);
      double* d_biases = d_scales + batch * g.channels;
      launch(stream_of(buffers), group_gradient<T>, g.blocks(), kGroupBlock, 0, buffers.in<T>(0),
             buffers.in<T>(1), RealPointer{buffers.inputs[2], scale}, d_scales, d_biases,
             buffers.out<T>(0), g);
      for_each(stream_of(buffers), g.channels,
               SumOverBatch{d_scales,
                            d_biases,
                            batch,
                            g.channels,
                            {buffers.out<std::byte>(1), d_scale},
                            {buffers.out<std::byte>(2), d_bias}});
    };
    const auto workspace = static_cast<size_t>(2 * plan.batch * plan.channels) * sizeof(double);
    return make_kernel(body, workspace,
                       [](size_t input, size_t output) { return input <= 1 && output == 0; });
  });
}

}  // namespace

std::vector<KernelRow> group_norm_rows() {
  return {
      {"", "GroupNormalization", "own.group_norm", prepare_group_norm},
      {"", "InstanceNormalization", "own.group_norm", prepare_group_norm},
      {"ai.halfnote", "GroupNormalizationGrad", "own.group_norm", prepare_group_grad},
  };
}

}  // namespace halfnote::HN_CUDA
