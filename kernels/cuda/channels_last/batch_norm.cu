// BatchNormalization and its gradient channels last: the formulas of the plain form
// (normalization/batch.h) on another walk. x is read twice. What a Relu leaves of dY is found anew
// in either pass; where it is a result, the first pass writes it and the second one reads that.
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/channels_last/walk.h"
#include "kernels/cuda/normalization/batch.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::BatchNormGradPlan;
using cpu::BatchNormPlan;
using cpu::NormMask;

/// Elements of 16 bits are computed with in f32, and a thread's sums of them are f32.
template <class T>
using RegionMath = NormMath<T>;

/// Sums of the distances from a channel's first element, and of their squares.
template <class T>
struct MomentSums {
  using Element = T;
  using Number = RegionMath<T>;
  using Channel = Number;
  static constexpr int kOperands = 1;
  const T* operands[kOperands];
  template <int V>
  __device__ void know(int64_t c, Channel (&pivots)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) pivots[v] = load_number(operands[0][c + v]);
  }
  template <int V>
  __device__ void add(const Channel (&pivots)[V], const RowOf<T, V, 1>& row, int64_t,
                      PairOf<Number> (&sums)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const Number distance = static_cast<Number>(load_number(row[0].of[v])) - pivots[v];
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
  ChannelLine<T>* lines;
  __device__ void operator()(int64_t c, const SumPair& sums) const {
    lines[c] = o.finish<T>(plan, c, load_number(x[c]), sums.first, sums.second, count);
  }
};

/// Of x and, where it adds one, a residual.
template <class T, bool kAdds>
struct Normalize {
  using Element = T;
  using Channel = ChannelLine<T>;
  static constexpr int kOperands = kAdds ? 2 : 1;
  const T* operands[kOperands];
  T* y;
  const ChannelLine<T>* lines;
  bool relu;
  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) of[v] = lines[c + v];
  }
  template <int V>
  __device__ void apply(const Channel (&of)[V], const RowOf<T, V, kOperands>& row,
                        int64_t at) const {
    Math<T> result[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      auto value = of[v].at(row[0].of[v]);
      if constexpr (kAdds) value += static_cast<RegionMath<T>>(load_number(row[1].of[v]));
      result[v] = Channel::finished(value, relu);
    }
    store_row(y, at, result);
  }
};

template <class T>
Prepared forward_kernel(const KernelCall& call, const BatchNormPlan& plan) {
  const int64_t rows = plan.channels.per_channel(), channels = plan.channels.channels;
  const ChannelWalk sums = walk_for_sums<T>(rows, channels);
  const size_t lines_at = plan.of_batch ? room_for_sums(sums) : 0;
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T* x = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    auto* parts = reinterpret_cast<SumPair*>(buffers.workspace);
    auto* lines = reinterpret_cast<ChannelLine<T>*>(buffers.workspace + lines_at);
    if (plan.of_batch) run_sums<T>(stream, MomentSums<T>{{x}}, sums, parts);
    finish_channels(
        stream, FinishMoments<T>{x, {types, plan, buffers}, plan, static_cast<double>(rows), lines},
        parts, channels, plan.of_batch ? sums.slices : 0);
    const ChannelWalk walk = walk_for_elements<T>(rows, channels);
    if (!plan.adds)
      return run_elements<T>(stream, Normalize<T, false>{{x}, y, lines, plan.relu}, walk);
    const T* residual = buffers.in<T>(cpu::kNormResidual);
    run_elements<T>(stream, Normalize<T, true>{{x, residual}, y, lines, plan.relu}, walk);
  };
  const size_t workspace = lines_at + static_cast<size_t>(channels) * sizeof(ChannelLine<T>);
  return make_kernel(body, workspace, cpu::batch_norm_in_place);
}

/// dY as it counts, and X; with them the other part of dY, and Y, where they are read.
template <class T, NormMask kMask, bool kAdds>
struct Incoming {
  using Element = T;
  static constexpr int kAddend = 2, kY = kAdds ? 3 : 2;
  static constexpr int kOperands = kY + (kMask == NormMask::kY ? 1 : 0);
  const T* operands[kOperands];

  Incoming(const T* dy, const T* x, const T* addend, const T* y) {
    operands[0] = dy;
    operands[1] = x;
    if constexpr (kAdds) operands[kAddend] = addend;
    if constexpr (kMask == NormMask::kY) operands[kY] = y;
  }
  template <int V>
  using Row = RowOf<T, V, kOperands>;
  template <int V>
  __device__ static T x(const Row<V>& row, int v) {
    return row[1].of[v];
  }
  /// dY of all elements.
  template <int V>
  __device__ static void dy(const Row<V>& row, const ChannelLine<T> (&of)[V], Math<T> (&g)[V]) {
    HN_UNROLL
    for (int v = 0; v < V; ++v) g[v] = load_number(row[0].of[v]);
    if constexpr (kAdds) {
      T rounded[V];  // as by an Add
      HN_UNROLL
      for (int v = 0; v < V; ++v) g[v] += load_number(row[kAddend].of[v]);
      store_numbers(g, rounded);
      HN_UNROLL
      for (int v = 0; v < V; ++v) g[v] = load_number(rounded[v]);
    }
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      if constexpr (kMask == NormMask::kY) g[v] = load_number(row[kY].of[v]) > 0 ? g[v] : 0;
      if constexpr (kMask == NormMask::kLine) g[v] = of[v].lets_through(x<V>(row, v)) ? g[v] : 0;
    }
  }
};

/// Σ dy and Σ dy·(x − mean).
template <class T, NormMask kMask, bool kAdds>
struct GradientSums : Incoming<T, kMask, kAdds> {
  using In = Incoming<T, kMask, kAdds>;
  using Number = RegionMath<T>;
  using Channel = ChannelLine<T>;
  T* kept;
  GradientOperands o;
  GradientSums(const In& in, T* sum, const GradientOperands& of_channels)
      : In(in), kept(sum), o(of_channels) {}
  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    if constexpr (kMask == NormMask::kLine) {
      o.lines(c, of);
    } else {
      o.means(c, of);
    }
  }
  template <int V>
  __device__ void add(const Channel (&of)[V], const typename In::template Row<V>& row, int64_t at,
                      PairOf<Number> (&sums)[V]) const {
    Math<T> counts[V];
    In::template dy<V>(row, of, counts);
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const auto g = static_cast<Number>(counts[v]);
      const auto x = static_cast<Number>(load_number(In::template x<V>(row, v)));
      sums[v].first += g;
      sums[v].second += g * (x - of[v].mean);
    }
    if (kept != nullptr) store_row(kept, at, counts);
  }
};

template <class T>
struct FinishGradient {
  GradientOperands o;
  double count;
  GradientLine<T>* lines;
  __device__ void operator()(int64_t c, const SumPair& sums) const {
    lines[c] = o.finish<T>(c, sums.first, sums.second * o.inv_std[c], count);
  }
};

template <class T, NormMask kMask>
struct InputGradient : Incoming<T, kMask, false> {
  using In = Incoming<T, kMask, false>;
  using Channel = GradientLine<T>;
  T* dx;
  const GradientLine<T>* lines;
  InputGradient(const In& in, T* result, const GradientLine<T>* of)
      : In(in), dx(result), lines(of) {}
  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) of[v] = lines[c + v];
  }
  template <int V>
  __device__ void apply(const Channel (&of)[V], const typename In::template Row<V>& row,
                        int64_t at) const {
    ChannelLine<T> of_y[V];
    Math<T> g[V], result[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) of_y[v] = of[v].y;
    In::template dy<V>(row, of_y, g);
    HN_UNROLL
    for (int v = 0; v < V; ++v) result[v] = of[v].gradient(g[v], In::template x<V>(row, v));
    store_row(dx, at, result);
  }
};

/// The gradient behind a Relu, or not; of a dY in two parts, whose sum is a result, or of one.
template <class T, NormMask kMask, bool kAdds>
Prepared gradient_kernel_of(const KernelCall& call, const BatchNormGradPlan& plan) {
  const int64_t rows = plan.channels.per_channel(), channels = plan.channels.channels;
  const ChannelWalk sums = walk_for_sums<T>(rows, channels);
  const size_t lines_at = room_for_sums(sums);
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1), *y = buffers.in<T>(cpu::kGradY);
    T *dx = buffers.out<T>(0), *kept = plan.keeps_sum ? buffers.out<T>(cpu::kGradSum) : nullptr;
    auto* parts = reinterpret_cast<SumPair*>(buffers.workspace);
    auto* lines = reinterpret_cast<GradientLine<T>*>(buffers.workspace + lines_at);
    const GradientOperands o(types, buffers);
    const Incoming<T, kMask, kAdds> in(dy, x, buffers.in<T>(cpu::kGradAddend), y);
    run_sums<T>(stream, GradientSums<T, kMask, kAdds>(in, kept, o), sums, parts);
    finish_channels(stream, FinishGradient<T>{o, static_cast<double>(rows), lines}, parts, channels,
                    sums.slices);
    if (dx == nullptr) return;
    const ChannelWalk walk = walk_for_elements<T>(rows, channels);
    if (kept != nullptr) {
      const InputGradient<T, NormMask::kNone> all({kept, x, nullptr, nullptr}, dx, lines);
      run_elements<T>(stream, all, walk);
    } else {
      run_elements<T>(stream, InputGradient<T, kMask>({dy, x, nullptr, y}, dx, lines), walk);
    }
  };
  const size_t workspace = lines_at + static_cast<size_t>(channels) * sizeof(GradientLine<T>);
  return make_kernel(body, workspace, cpu::batch_norm_grad_in_place);
}

template <class T, NormMask kMask>
Prepared masked_gradient_kernel(const KernelCall& call, const BatchNormGradPlan& plan) {
  return plan.adds ? gradient_kernel_of<T, kMask, true>(call, plan)
                   : gradient_kernel_of<T, kMask, false>(call, plan);
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const BatchNormGradPlan& plan) {
  switch (plan.mask) {
    case NormMask::kY:
      return masked_gradient_kernel<T, NormMask::kY>(call, plan);
    case NormMask::kLine:
      return masked_gradient_kernel<T, NormMask::kLine>(call, plan);
    default:
      return masked_gradient_kernel<T, NormMask::kNone>(call, plan);
  }
}

Prepared prepare_forward(const KernelCall& call) {
  BatchNormPlan plan;
  if (std::string why = cpu::plan_batch_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_region_type(call.inputs[0].dtype,
                         [&]<class T>() { return forward_kernel<T>(call, plan); });
}

Prepared prepare_gradient(const KernelCall& call) {
  BatchNormGradPlan plan;
  if (std::string why = cpu::plan_batch_norm_grad(call, plan); !why.empty())
    return Prepared::no(why);
  return for_region_type(call.inputs[0].dtype,
                         [&]<class T>() { return gradient_kernel<T>(call, plan); });
}

uint32_t with_input(const KernelCall& call, uint32_t inputs, size_t index) {
  return call.has_input(index) ? inputs | 1u << index : inputs;
}

BlockedOperands x_and_y(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  return all_channels_last(call, with_input(call, 0b1, cpu::kNormResidual), 0b1);
}
BlockedOperands dy_x_and_dx(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  const uint32_t outputs =
      (call.has_output(0) ? 0b1 : 0) | (call.has_output(cpu::kGradSum) ? 1u << cpu::kGradSum : 0);
  // Two parts are added up once.
  if (call.has_input(cpu::kGradAddend) && !call.has_output(cpu::kGradSum)) return {};
  const uint32_t inputs = with_input(call, 0b11, cpu::kGradAddend);
  return all_channels_last(call, with_input(call, inputs, cpu::kGradY), outputs);
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
