// BatchNormalization and its gradient channels last: the formulas of the plain form
// (normalization/batch.h) on another walk. x is read twice.
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/channels_last/walk.h"
#include "kernels/cuda/normalization/batch.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::BatchNormPlan;

/// Sums of the distances from a channel's first element, and of their squares.
template <class T>
struct MomentSums {
  using Channel = double;
  const T* x;
  __device__ double channel(int64_t c) const { return load_number(x[c]); }
  template <int V>
  __device__ void add(const double (&pivots)[V], int64_t at, SumPair (&sums)[V]) const {
    const Together<T, V> here = load_together<V>(x, at);
    for (int v = 0; v < V; ++v) {
      const double distance = load_number(here.of[v]) - pivots[v];
      sums[v].first += distance;
      sums[v].second += distance * distance;
    }
  }
};

template <class T>
struct FinishMoments {
  const T* x;
  NormOperands o;
  BatchNormPlan plan;
  double count;
  ChannelLine* lines;
  __device__ void operator()(int64_t c, const SumPair& sums) const {
    lines[c] = o.finish(plan, c, load_number(x[c]), sums.first, sums.second, count);
  }
};

template <class T>
struct Normalize {
  using Channel = ChannelLine;
  const T* x;
  T* y;
  const ChannelLine* lines;
  __device__ ChannelLine channel(int64_t c) const { return lines[c]; }
  template <int V>
  __device__ void apply(const ChannelLine (&of)[V], int64_t at) const {
    Together<T, V> here = load_together<V>(x, at);
    for (int v = 0; v < V; ++v) here.of[v] = of[v].normalized(here.of[v]);
    *reinterpret_cast<Together<T, V>*>(y + at) = here;
  }
};

template <class T>
Prepared forward_kernel(const KernelCall& call, const BatchNormPlan& plan) {
  const int64_t rows = plan.channels.per_channel(), channels = plan.channels.channels;
  const ChannelWalk sums = walk_for_sums(rows, channels);
  const size_t lines_at = plan.of_batch ? room_for_sums(sums) : 0;
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T* x = buffers.in<T>(0);
    auto* parts = reinterpret_cast<SumPair*>(buffers.workspace);
    auto* lines = reinterpret_cast<ChannelLine*>(buffers.workspace + lines_at);
    if (plan.of_batch) run_sums(stream, MomentSums<T>{x}, sums, parts);
    finish_channels(
        stream, FinishMoments<T>{x, {types, plan, buffers}, plan, static_cast<double>(rows), lines},
        parts, channels, plan.of_batch ? sums.slices : 0);
    run_elements(stream, Normalize<T>{x, buffers.out<T>(0), lines},
                 walk_for_elements(rows, channels));
  };
  const size_t workspace = lines_at + static_cast<size_t>(channels) * sizeof(ChannelLine);
  return make_kernel(body, workspace,
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

/// Σ dy and Σ dy·(x − mean)/σ.
template <class T>
struct GradientSums {
  struct Channel {
    double mean, inv_std;
  };
  const T *dy, *x;
  RealPointer means, inv_stds;
  __device__ Channel channel(int64_t c) const { return {means[c], inv_stds[c]}; }
  template <int V>
  __device__ void add(const Channel (&of)[V], int64_t at, SumPair (&sums)[V]) const {
    const Together<T, V> gradients = load_together<V>(dy, at), here = load_together<V>(x, at);
    for (int v = 0; v < V; ++v) {
      const double g = load_number(gradients.of[v]);
      sums[v].first += g;
      sums[v].second += g * ((load_number(here.of[v]) - of[v].mean) * of[v].inv_std);
    }
  }
};

struct FinishGradient {
  GradientOperands o;
  double count;
  GradientLine* lines;
  __device__ void operator()(int64_t c, const SumPair& sums) const {
    lines[c] = o.finish(c, sums.first, sums.second, count);
  }
};

template <class T>
struct InputGradient {
  using Channel = GradientLine;
  const T *dy, *x;
  T* dx;
  const GradientLine* lines;
  __device__ GradientLine channel(int64_t c) const { return lines[c]; }
  template <int V>
  __device__ void apply(const GradientLine (&of)[V], int64_t at) const {
    Together<T, V> gradients = load_together<V>(dy, at);
    const Together<T, V> here = load_together<V>(x, at);
    for (int v = 0; v < V; ++v) gradients.of[v] = of[v].gradient(gradients.of[v], here.of[v]);
    *reinterpret_cast<Together<T, V>*>(dx + at) = gradients;
  }
};

template <class T>
Prepared gradient_kernel(const KernelCall& call, const cpu::Channels& plan) {
  const int64_t rows = plan.per_channel(), channels = plan.channels;
  const ChannelWalk sums = walk_for_sums(rows, channels);
  const size_t lines_at = room_for_sums(sums);
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
    auto* parts = reinterpret_cast<SumPair*>(buffers.workspace);
    auto* lines = reinterpret_cast<GradientLine*>(buffers.workspace + lines_at);
    const GradientOperands o(types, buffers);
    run_sums(stream, GradientSums<T>{dy, x, o.mean, o.inv_std}, sums, parts);
    finish_channels(stream, FinishGradient{o, static_cast<double>(rows), lines}, parts, channels,
                    sums.slices);
    if (buffers.out<T>(0) == nullptr) return;
    run_elements(stream, InputGradient<T>{dy, x, buffers.out<T>(0), lines},
                 walk_for_elements(rows, channels));
  };
  const size_t workspace = lines_at + static_cast<size_t>(channels) * sizeof(GradientLine);
  return make_kernel(body, workspace,
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

/// Calls `body` for the types that regions hold.
template <class Body>
Prepared for_region_type(DType dtype, const Body& body) {
  if (dtype == DType::kF32) return body.template operator()<float>();
  if (dtype == DType::kF16) return body.template operator()<Half>();
  if (dtype == DType::kBF16) return body.template operator()<BFloat16>();
  return Prepared::no("not for elements of type " + std::string(short_name(dtype)));
}

Prepared prepare_forward(const KernelCall& call) {
  BatchNormPlan plan;
  if (std::string why = cpu::plan_batch_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_region_type(call.inputs[0].dtype,
                         [&]<class T>() { return forward_kernel<T>(call, plan); });
}

Prepared prepare_gradient(const KernelCall& call) {
  cpu::Channels plan;
  if (std::string why = cpu::plan_batch_norm_grad(call, plan); !why.empty())
    return Prepared::no(why);
  return for_region_type(call.inputs[0].dtype,
                         [&]<class T>() { return gradient_kernel<T>(call, plan); });
}

bool is_region_type(DType dtype) { return dtype == DType::kF32 || is_16bit_float(dtype); }

BlockedOperands x_and_y(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  return all_channels_last(call, 0b1, 0b1);
}
BlockedOperands dy_x_and_dx(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  return all_channels_last(call, 0b11, call.has_output(0) ? 0b1 : 0);
}

}  // namespace

std::vector<BlockedRow> channels_last_batch_norm() {
  constexpr std::string_view kPlain = "own.batch_norm", kName = "channels_last.batch_norm";
  return {
      {{"", "BatchNormalization", kName, prepare_forward}, kPlain, x_and_y},
      {{"ai.halfnote", "BatchNormalization", kName, prepare_forward}, kPlain, x_and_y},
      {{"ai.halfnote", "BatchNormalizationGrad", kName, prepare_gradient}, kPlain, dy_x_and_dx},
  };
}

}  // namespace halfnote::HN_CUDA
