// GroupNormalization, InstanceNormalization and their gradient: a block of threads a group, sums in
// f64. The channels of a group and all their positions lie together.
#include "kernels/cuda/normalization/lines.h"
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

struct GroupMoments {
  double mean, inv_std;
};

/// In two passes; every thread of the block gets them.
template <class T>
__device__ GroupMoments moments_of(const T* x, const DeviceGroups& g) {
  double sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) sum += load_number(x[i]);
  const double mean = merge_block<AddNumbers, kGroupBlock>(sum) / static_cast<double>(g.size());
  for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) {
    const double distance = load_number(x[i]) - mean;
    squares += distance * distance;
  }
  squares = merge_block<AddNumbers, kGroupBlock>(squares) / static_cast<double>(g.size());
  return {mean, 1 / math::sqrt(squares + g.epsilon)};
}

template <class T>
__global__ void __launch_bounds__(kGroupBlock)
    group_norm(const T* x, RealPointer scale, RealPointer bias, T* y, DeviceGroups g) {
  using M = Math<T>;
  for (int64_t group = blockIdx.x; group < g.count; group += gridDim.x) {
    const T* own = x + group * g.size();
    const GroupMoments moments = moments_of(own, g);
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
    return make_kernel([g = DeviceGroups(plan), scale = call.inputs[1].dtype,
                        bias = call.inputs[2].dtype](const KernelBuffers& buffers) {
      launch(stream_of(buffers), group_norm<T>, g.blocks(), kGroupBlock, 0, buffers.in<T>(0),
             RealPointer{buffers.inputs[1], scale}, RealPointer{buffers.inputs[2], bias},
             buffers.out<T>(0), g);
    });
  });
}

/// One group of one image: the sums of each of its channels, then dX. The threads of a block go
/// through the channels together.
template <class T>
__global__ void __launch_bounds__(kGroupBlock)
    group_gradient(const T* dy, const T* x, RealPointer scale, double* d_scales, double* d_biases,
                   T* dx, DeviceGroups g) {
  for (int64_t group = blockIdx.x; group < g.count; group += gridDim.x) {
    const int64_t first = group * g.size();
    const GroupMoments moments = moments_of(x + first, g);
    double sum = 0, product = 0;
    for (int64_t c = 0; c < g.per_group; ++c) {
      double d_bias = 0, d_scale = 0;
      for (int64_t p = threadIdx.x; p < g.positions(); p += kGroupBlock) {
        const int64_t at = first + c * g.positions() + p;
        const double gradient = load_number(dy[at]);
        d_bias += gradient;
        d_scale += gradient * ((load_number(x[at]) - moments.mean) * moments.inv_std);
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
    if (dx == nullptr) continue;
    const double count = static_cast<double>(g.size());
    for (int64_t i = threadIdx.x; i < g.size(); i += kGroupBlock) {
      const double centred = load_number(dy[first + i]) * scale[g.channel(group, i)] - sum / count;
      const double normalized = (load_number(x[first + i]) - moments.mean) * moments.inv_std;
      const double value = moments.inv_std * (centred - normalized * (product / count));
      dx[first + i] = store_number<T>(static_cast<Math<T>>(value));
    }
  }
}

/// Over the images, in order.
struct SumOverBatch {
  const double *d_scales, *d_biases;
  int64_t batch, channels;
  RealOutput d_scale, d_bias;
  __device__ void operator()(int64_t channel) const {
    double scale = 0, bias = 0;
    for (int64_t n = 0; n < batch; ++n) {
      scale += d_scales[n * channels + channel];
      bias += d_biases[n * channels + channel];
    }
    if (d_scale.data != nullptr) d_scale.write(channel, scale);
    if (d_bias.data != nullptr) d_bias.write(channel, bias);
  }
};

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
