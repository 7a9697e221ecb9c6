// BatchNormalization, ONNX's and that of ai.halfnote, and its gradient: a channel is cut into
// slices, a block sums one in f64, the slices are merged in order, and a last kernel writes Y or
// dX. Sums of squares are taken around the channel's first element, so that one pass over X is
// enough.
#include "kernels/cuda/normalization/batch.h"

#include "kernels/cuda/normalization/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::BatchNormPlan;
using cpu::NormMask;

constexpr int64_t kSlice = 8192;  // elements of a channel that a block sums
constexpr int64_t kMaxGridY = 65535;

/// X as (images, channels, plane), for kernels.
struct DeviceChannels {
  int64_t channels = 1, per_channel = 0, slice = 1, slices = 1;
  Divisor plane, by_channel;

  explicit DeviceChannels(const cpu::Channels& plan)
      : channels(plan.channels),
        per_channel(plan.per_channel()),
        plane(plan.plane),
        by_channel(plan.channels) {
    slice = std::max(kSlice, (per_channel + kMaxGridY - 1) / kMaxGridY);
    slices = std::max<int64_t>(1, (per_channel + slice - 1) / slice);
  }
  int64_t count() const { return channels * per_channel; }
  /// Element i of channel c.
  __device__ int64_t index(int64_t c, int64_t i) const {
    const int64_t image = plane.quotient(i);
    return (image * channels + c) * plane.value() + (i - image * plane.value());
  }
  /// The channel of an element.
  __device__ int64_t channel(int64_t index) const {
    return by_channel.remainder(plane.quotient(index));
  }
  /// Is the bit of an element 1? (cpu::Channels::sign_bytes)
  __device__ bool has_sign(const uint8_t* signs, int64_t index) const {
    const int64_t of_plane = plane.quotient(index), image = by_channel.quotient(of_plane);
    const int64_t c = of_plane - image * channels;
    const int64_t pixel = image * plane.value() + (index - of_plane * plane.value());
    return (signs[(pixel * channels + c) / 8] >> c % 8 & 1) != 0;
  }
  dim3 grid() const { return {static_cast<unsigned>(channels), static_cast<unsigned>(slices)}; }
};

/// Two sums of a channel, a pair for each of its slices.
struct PairSums {
  double* parts;
  __device__ double* of(const DeviceChannels& x, int64_t slice, int64_t c) const {
    return parts + 2 * (slice * x.channels + c);
  }
  /// All slices of channel c, in order.
  __device__ void merge(const DeviceChannels& x, int64_t c, double& first, double& second) const {
    first = second = 0;
    for (int64_t s = 0; s < x.slices; ++s) {
      first += of(x, s, c)[0];
      second += of(x, s, c)[1];
    }
  }
};

size_t sum_bytes(const DeviceChannels& shape) {
  return static_cast<size_t>(2 * shape.slices * shape.channels) * sizeof(double);
}

/// Adds up `body(element, first, second)` over a block's slice of its channel.
template <class Body>
__device__ void sum_slice(const DeviceChannels& x, const PairSums& sums, const Body& body) {
  const int64_t c = blockIdx.x, begin = int64_t{blockIdx.y} * x.slice;
  const int64_t end = begin + x.slice < x.per_channel ? begin + x.slice : x.per_channel;
  double first = 0, second = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) body(x.index(c, i), first, second);
  first = merge_block<AddNumbers, kBlock>(first);
  second = merge_block<AddNumbers, kBlock>(second);
  if (threadIdx.x != 0) return;
  double* to = sums.of(x, blockIdx.y, c);
  to[0] = first;
  to[1] = second;
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    moment_slices(const T* x, DeviceChannels shape, PairSums sums) {
  if (shape.per_channel == 0) return sum_slice(shape, sums, [](int64_t, double&, double&) {});
  const double pivot = load_number(x[shape.index(blockIdx.x, 0)]);
  sum_slice(shape, sums, [&](int64_t i, double& sum, double& squares) {
    const double distance = load_number(x[i]) - pivot;
    sum += distance;
    squares += distance * distance;
  });
}

template <class T>
struct FinishMoments {
  const T* x;
  DeviceChannels shape;
  PairSums sums;
  NormOperands o;
  BatchNormPlan plan;
  ChannelLine<T>* lines;
  __device__ void operator()(int64_t c) const {
    double sum = 0, squares = 0, pivot = 0;
    if (plan.of_batch) {
      sums.merge(shape, c, sum, squares);
      if (shape.per_channel > 0) pivot = load_number(x[shape.index(c, 0)]);
    }
    lines[c] = o.finish<T>(plan, c, pivot, sum, squares, static_cast<double>(shape.per_channel));
    if (plan.adds_line) lines[shape.channels + c] = o.of_residual<T>(c);
  }
};

template <class T>
struct NormElement {
  using M = NormMath<T>;
  const T *x, *residual;
  T* y;
  DeviceChannels shape;
  const ChannelLine<T>* lines;
  const ChannelLine<T>* of_residual;  // or null
  bool relu;
  __device__ void operator()(int64_t i) const {
    const int64_t c = shape.channel(i);
    M value = lines[c].at(x[i]);
    if (of_residual != nullptr) {
      value += of_residual[c].at(residual[i]);
    } else if (residual != nullptr) {
      value += static_cast<M>(load_number(residual[i]));
    }
    y[i] = store_number<T>(ChannelLine<T>::finished(value, relu));
  }
};

/// The byte of eight channels of a pixel.
template <class T>
struct WriteSigns {
  const T* y;
  uint8_t* signs;
  DeviceChannels shape;
  Divisor by_group;  // of 8 channels
  __device__ void operator()(int64_t at) const {
    const int64_t pixel = by_group.quotient(at), c = (at - pixel * by_group.value()) * 8;
    const int64_t image = shape.plane.quotient(pixel);
    const int64_t place = pixel - image * shape.plane.value();
    unsigned bits = 0;
    for (int64_t v = 0; v < 8; ++v) {
      const int64_t from = (image * shape.channels + c + v) * shape.plane.value() + place;
      if (load_number(y[from]) > 0) bits |= 1u << v;
    }
    signs[at] = static_cast<uint8_t>(bits);
  }
};

template <class T>
Prepared forward_kernel(const KernelCall& call, const BatchNormPlan& plan) {
  const DeviceChannels shape(plan.channels);
  const size_t lines_at = sum_bytes(shape);
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    const PairSums sums{reinterpret_cast<double*>(buffers.workspace)};
    auto* lines = reinterpret_cast<ChannelLine<T>*>(buffers.workspace + lines_at);
    const T* residual = plan.adds ? buffers.in<T>(cpu::kNormResidual) : nullptr;
    const NormOperands o(types, plan, buffers);
    if (plan.of_batch)
      launch(stream_of(buffers), moment_slices<T>, shape.grid(), kBlock, 0, x, shape, sums);
    for_each(stream_of(buffers), shape.channels, FinishMoments<T>{x, shape, sums, o, plan, lines});
    if (buffers.out<T>(0) == nullptr) return;
    const auto* of_residual = plan.adds_line ? lines + shape.channels : nullptr;
    for_each(stream_of(buffers), shape.count(),
             NormElement<T>{x, residual, buffers.out<T>(0), shape, lines, of_residual, plan.relu});
    if (!plan.keeps_signs) return;
    auto* signs = buffers.out<uint8_t>(cpu::kNormSigns);
    const WriteSigns<T> write{buffers.out<T>(0), signs, shape, Divisor(shape.channels / 8)};
    for_each(stream_of(buffers), plan.channels.sign_bytes(), write);
  };
  const int64_t line_count = (plan.adds_line ? 2 : 1) * shape.channels;
  const size_t workspace = lines_at + static_cast<size_t>(line_count) * sizeof(ChannelLine<T>);
  return make_kernel(body, workspace, cpu::batch_norm_in_place);
}

Prepared prepare_forward(const KernelCall& call) {
  BatchNormPlan plan;
  if (std::string why = cpu::plan_batch_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return forward_kernel<T>(call, plan); });
}

/// dY as it counts; null pointers are operands that are not there.
template <class T>
struct Incoming {
  const T *dy, *addend, *y, *x;
  const uint8_t* signs;
  T* kept;
  bool by_line;

  __device__ T at(const DeviceChannels& shape, int64_t i, const ChannelLine<T>& line) const {
    if (!lets_through(shape, i, line)) return T{};
    if (addend == nullptr) return dy[i];
    return store_number<T>(load_number(dy[i]) + load_number(addend[i]));  // rounded as by an Add
  }

 private:
  __device__ bool lets_through(const DeviceChannels& shape, int64_t i,
                               const ChannelLine<T>& line) const {
    if (signs != nullptr) return shape.has_sign(signs, i);
    if (y != nullptr) return load_number(y[i]) > 0;
    return !by_line || line.lets_through(x[i]);
  }
};

template <class T>
__global__ void __launch_bounds__(kBlock)
    gradient_slices(const __grid_constant__ Incoming<T> in, DeviceChannels shape,
                    const __grid_constant__ NormGradientOperands o, PairSums sums) {
  const double mean = o.mean[blockIdx.x], inv_std = o.inv_std[blockIdx.x];
  const ChannelLine<T> line = o.line<T>(blockIdx.x);
  sum_slice(shape, sums, [&](int64_t i, double& sum, double& product) {
    const T stored = in.at(shape, i, line);
    const double distance = load_number(in.x[i]) - mean, g = load_number(stored);
    if (in.kept != nullptr) in.kept[i] = stored;
    sum += g;
    product += g * (distance * inv_std);
  });
}

template <class T>
struct FinishGradient {
  DeviceChannels shape;
  PairSums sums;
  NormGradientOperands o;
  GradientLine<T>* lines;
  __device__ void operator()(int64_t c) const {
    double sum = 0, product = 0;
    sums.merge(shape, c, sum, product);
    lines[c] = o.finish<T>(c, sum, product, static_cast<double>(shape.per_channel));
  }
};

template <class T>
struct GradientElement {
  Incoming<T> in;
  T* dx;
  DeviceChannels shape;
  const GradientLine<T>* lines;
  __device__ void operator()(int64_t i) const {
    const GradientLine<T> line = lines[shape.channel(i)];
    dx[i] = store_number<T>(line.gradient(load_number(in.at(shape, i, line.y)), in.x[i]));
  }
};

/// The passes for one normalization.
template <class T>
void run_gradient(const KernelBuffers& buffers, const cpu::BatchNormGradPlan& plan,
                  const OperandTypes& types, const cpu::NormGradPlaces& at) {
  const DeviceChannels shape(plan.channels);
  Incoming<T> in{buffers.in<T>(0),
                 plan.adds ? buffers.in<T>(cpu::kGradAddend) : nullptr,
                 plan.mask == NormMask::kY ? buffers.in<T>(cpu::kGradY) : nullptr,
                 buffers.in<T>(at.x),
                 plan.mask == NormMask::kBits ? buffers.in<uint8_t>(cpu::kGradSigns) : nullptr,
                 plan.keeps_sum ? buffers.out<T>(cpu::kGradSum) : nullptr,
                 plan.mask == NormMask::kLine};
  const PairSums sums{reinterpret_cast<double*>(buffers.workspace)};
  auto* lines = reinterpret_cast<GradientLine<T>*>(buffers.workspace + sum_bytes(shape));
  const NormGradientOperands o(types, buffers, at);
  launch(stream_of(buffers), gradient_slices<T>, shape.grid(), kBlock, 0, in, shape, o, sums);
  for_each(stream_of(buffers), shape.channels, FinishGradient<T>{shape, sums, o, lines});
  T* dx = buffers.out<T>(at.dx);
  if (dx == nullptr) return;
  if (in.kept != nullptr) in = {in.kept, nullptr, nullptr, in.x, nullptr, nullptr, false};
  for_each(stream_of(buffers), shape.count(), GradientElement<T>{in, dx, shape, lines});
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const cpu::BatchNormGradPlan& plan) {
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    run_gradient<T>(buffers, plan, types, cpu::kOneGrad);
    if (plan.has_other) run_gradient<T>(buffers, plan, types, cpu::kOtherGrad);
  };
  const DeviceChannels shape(plan.channels);
  const size_t workspace =
      sum_bytes(shape) + static_cast<size_t>(shape.channels) * sizeof(GradientLine<T>);
  // The second gradient reads what the first one would be written over.
  return plan.has_other ? make_kernel(body, workspace)
                        : make_kernel(body, workspace, cpu::batch_norm_grad_in_place);
}

Prepared prepare_gradient(const KernelCall& call) {
  cpu::BatchNormGradPlan plan;
  if (std::string why = cpu::plan_batch_norm_grad(call, plan); !why.empty()) {
    return Prepared::no(why);
  }
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return gradient_kernel<T>(call, plan); });
}

}  // namespace

std::vector<KernelRow> batch_norm_rows() {
  return {
      {"", "BatchNormalization", "own.batch_norm", prepare_forward},
      {"ai.halfnote", "BatchNormalization", "own.batch_norm", prepare_forward},
      {"ai.halfnote", "BatchNormalizationGrad", "own.batch_norm", prepare_gradient},
  };
}

}  // namespace halfnote::HN_CUDA
