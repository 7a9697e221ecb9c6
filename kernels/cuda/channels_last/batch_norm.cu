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
  uint8_t* signs_of_y;  // a byte for 8 channels, or null
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
    if constexpr (V == 8) {
      if (signs_of_y == nullptr) return;
      unsigned bits = 0;
      HN_UNROLL
      for (int v = 0; v < V; ++v) bits |= is_stored_positive<T>(result[v]) ? 1u << v : 0;
      signs_of_y[at / 8] = static_cast<uint8_t>(bits);
    }
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
    uint8_t* signs = plan.keeps_signs ? buffers.out<uint8_t>(cpu::kNormSigns) : nullptr;
    if (!plan.adds)
      return run_elements<T>(stream, Normalize<T, false>{{x}, y, signs, lines, plan.relu}, walk);
    const T* residual = buffers.in<T>(cpu::kNormResidual);
    run_elements<T>(stream, Normalize<T, true>{{x, residual}, y, signs, lines, plan.relu}, walk);
  };
  const size_t workspace = lines_at + static_cast<size_t>(channels) * sizeof(ChannelLine<T>);
  return make_kernel(body, workspace, cpu::batch_norm_in_place);
}

/// The signs of Y, where a gradient reads them.
template <NormMask kMask>
struct SignsOfY {};
template <>
struct SignsOfY<NormMask::kBits> {
  const uint8_t* signs = nullptr;
};

/// What a gradient reads of each element; null pointers are operands that are not there.
template <class T>
struct GradientInputs {
  const T *dy, *x, *addend, *y;
  const uint8_t* signs;
};

/// dY as it counts, and X; with them the other part of dY, and Y or its signs, where they are read.
template <class T, NormMask kMask, bool kAdds>
struct Incoming : SignsOfY<kMask> {
  using Element = T;
  static constexpr int kAddend = 2, kY = kAdds ? 3 : 2;
  static constexpr int kOperands = kY + (kMask == NormMask::kY ? 1 : 0);
  const T* operands[kOperands];

  explicit Incoming(const GradientInputs<T>& in) {
    operands[0] = in.dy;
    operands[1] = in.x;
    if constexpr (kAdds) operands[kAddend] = in.addend;
    if constexpr (kMask == NormMask::kY) operands[kY] = in.y;
    if constexpr (kMask == NormMask::kBits) this->signs = in.signs;
  }
  template <int V>
  using Row = std::conditional_t<kMask == NormMask::kBits && V == 8, SignedRowOf<T, V, kOperands>,
                                 RowOf<T, V, kOperands>>;
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
      if constexpr (kMask == NormMask::kBits && V == 8) g[v] = row.signs >> v & 1 ? g[v] : 0;
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
    GradientInputs<T> of{buffers.in<T>(0), buffers.in<T>(1), buffers.in<T>(cpu::kGradAddend),
                         buffers.in<T>(cpu::kGradY), buffers.in<uint8_t>(cpu::kGradSigns)};
    T *dx = buffers.out<T>(0), *kept = plan.keeps_sum ? buffers.out<T>(cpu::kGradSum) : nullptr;
    auto* parts = reinterpret_cast<SumPair*>(buffers.workspace);
    auto* lines = reinterpret_cast<GradientLine<T>*>(buffers.workspace + lines_at);
    const GradientOperands o(types, buffers);
    const Incoming<T, kMask, kAdds> in(of);
    run_sums<T>(stream, GradientSums<T, kMask, kAdds>(in, kept, o), sums, parts);
    finish_channels(stream, FinishGradient<T>{o, static_cast<double>(rows), lines}, parts, channels,
                    sums.slices);
    if (dx == nullptr) return;
    const ChannelWalk walk = walk_for_elements<T>(rows, channels);
    if (kept != nullptr) {
      of.dy = kept;
      const Incoming<T, NormMask::kNone, false> all(of);
      run_elements<T>(stream, InputGradient<T, NormMask::kNone>(all, dx, lines), walk);
    } else {
      const Incoming<T, kMask, false> one(of);
      run_elements<T>(stream, InputGradient<T, kMask>(one, dx, lines), walk);
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
    case NormMask::kBits:
      return masked_gradient_kernel<T, NormMask::kBits>(call, plan);
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

/// A thread has the 8 channels of a byte where its 16 bytes are elements of 16 bits.
bool takes_signs(const KernelCall& call) { return is_16bit_float(call.inputs[0].dtype); }

BlockedOperands x_and_y(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  if (call.has_output(cpu::kNormSigns) && !takes_signs(call)) return {};
  return all_channels_last(call, with_input(call, 0b1, cpu::kNormResidual), 0b1);
}
BlockedOperands dy_x_and_dx(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  const uint32_t outputs =
      (call.has_output(0) ? 0b1 : 0) | (call.has_output(cpu::kGradSum) ? 1u << cpu::kGradSum : 0);
  // Two parts are added up once.
  if (call.has_input(cpu::kGradAddend) && !call.has_output(cpu::kGradSum)) return {};
  if (call.has_input(cpu::kGradSigns) && !takes_signs(call)) return {};
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
