// The gradient of BatchNormalization channels last: the formulas of the plain form
// (normalization/batch.h) on another walk. dY and x are read twice. What a Relu leaves of dY is
// found anew in either pass; where it is a result, the first pass writes it and the second one
// reads that. Of two normalizations that were added up both gradients are made in the same passes.
#include "kernels/cuda/channels_last/lines.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/channels_last/walk.h"
#include "kernels/cuda/normalization/batch.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::BatchNormGradPlan;
using cpu::NormMask;

template <class T>
using GradientLines = LineTable<GradientLine<T>, NormMath<T>>;

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
  const T *dy, *x, *addend, *y, *other_x;
  const uint8_t* signs;
};

/// The operand behind dY and X, where there is one.
constexpr int kAddendAt = 2;

/// dY as it counts, and X; with them the other part of dY, Y or its signs, and the X of another
/// normalization, where they are read.
template <class T, NormMask kMask, bool kAdds, bool kHasOther = false>
struct Incoming : SignsOfY<kMask> {
  using Element = T;
  static constexpr int kY = kAddendAt + (kAdds ? 1 : 0);
  static constexpr int kOtherX = kY + (kMask == NormMask::kY ? 1 : 0);
  static constexpr int kOperands = kOtherX + (kHasOther ? 1 : 0);
  const T* operands[kOperands];

  explicit Incoming(const GradientInputs<T>& in) {
    operands[0] = in.dy;
    operands[1] = in.x;
    if constexpr (kAdds) operands[kAddendAt] = in.addend;
    if constexpr (kMask == NormMask::kY) operands[kY] = in.y;
    if constexpr (kHasOther) operands[kOtherX] = in.other_x;
    if constexpr (kMask == NormMask::kBits) this->signs = in.signs;
  }
  template <int V>
  using Row = std::conditional_t<kMask == NormMask::kBits && V == 8, SignedRowOf<T, V, kOperands>,
                                 RowOf<T, V, kOperands>>;
  template <int V>
  __device__ static T x(const Row<V>& row, int v) {
    return row[1].of[v];
  }
  /// dY of all elements; `of` says how Y was computed, where that is asked.
  template <int V>
  __device__ static void dy(const Row<V>& row, const ChannelLine<T>* of, Math<T> (&g)[V]) {
    HN_UNROLL
    for (int v = 0; v < V; ++v) g[v] = load_number(row[0].of[v]);
    if constexpr (kAdds) {
      T rounded[V];  // as by an Add
      HN_UNROLL
      for (int v = 0; v < V; ++v) g[v] += load_number(row[kAddendAt].of[v]);
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
  using Number = NormMath<T>;
  using Channel = ChannelLine<T>;
  static constexpr int kSums = 2;
  T* kept;
  NormGradientOperands o;
  GradientSums(const In& in, T* sum, const NormGradientOperands& of_channels)
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
                      SumsOf<Number, kSums> (&sums)[V]) const {
    Math<T> counts[V];
    In::template dy<V>(row, of, counts);
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const auto g = static_cast<Number>(counts[v]);
      const auto x = static_cast<Number>(load_number(In::template x<V>(row, v)));
      sums[v].of[0] += g;
      sums[v].of[1] += g * (x - of[v].mean);
    }
    if (kept != nullptr) store_row(kept, at, counts);
  }
};

template <class T>
struct FinishGradient {
  static constexpr int kSums = 2;
  NormGradientOperands o;
  double count;
  GradientLines<T> lines;
  __device__ void operator()(int64_t c, const SumsOf<double, kSums>& sums) const {
    lines.write(c, o.finish<T>(c, sums.of[0], sums.of[1] * o.inv_std[c], count));
  }
};

template <class T, NormMask kMask>
struct InputGradient : Incoming<T, kMask, false> {
  using In = Incoming<T, kMask, false>;
  using Channel = GradientLine<T>;
  T* dx;
  GradientLines<T> lines;
  InputGradient(const In& in, T* result, const GradientLines<T>& of)
      : In(in), dx(result), lines(of) {}
  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    lines.read(c, of);
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

/// Of two normalizations that were added up: Σ dy, and Σ dy·(x − mean) of each.
template <class T, bool kAdds>
struct GradientsSums : Incoming<T, NormMask::kBits, kAdds, true> {
  using In = Incoming<T, NormMask::kBits, kAdds, true>;
  using Number = NormMath<T>;
  struct Channel {
    Number mean, other_mean;
  };
  static constexpr int kSums = 3;
  NormGradientOperands o, other;
  GradientsSums(const In& in, const NormGradientOperands& one_norm,
                const NormGradientOperands& other_norm)
      : In(in), o(one_norm), other(other_norm) {}
  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    ChannelLine<T> one_norm[V], other_norm[V];
    o.means(c, one_norm);
    other.means(c, other_norm);
    HN_UNROLL
    for (int v = 0; v < V; ++v) of[v] = {one_norm[v].mean, other_norm[v].mean};
  }
  template <int V>
  __device__ void add(const Channel (&of)[V], const typename In::template Row<V>& row, int64_t,
                      SumsOf<Number, kSums> (&sums)[V]) const {
    Math<T> counts[V];
    In::template dy<V>(row, nullptr, counts);
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const auto g = static_cast<Number>(counts[v]);
      sums[v].of[0] += g;
      sums[v].of[1] += g * (static_cast<Number>(load_number(row[1].of[v])) - of[v].mean);
      sums[v].of[2] +=
          g * (static_cast<Number>(load_number(row[In::kOtherX].of[v])) - of[v].other_mean);
    }
  }
};

template <class T>
struct FinishGradients {
  static constexpr int kSums = 3;
  NormGradientOperands o, other;
  int64_t channels;
  double count;
  GradientLines<T> lines;  // of one, and behind them those of the other
  __device__ void operator()(int64_t c, const SumsOf<double, kSums>& sums) const {
    lines.write(c, o.finish<T>(c, sums.of[0], sums.of[1] * o.inv_std[c], count));
    lines.write(channels + c, other.finish<T>(c, sums.of[0], sums.of[2] * other.inv_std[c], count));
  }
};

/// dX of both; null where nobody reads it.
template <class T, bool kAdds>
struct InputGradients : Incoming<T, NormMask::kBits, kAdds, true> {
  using In = Incoming<T, NormMask::kBits, kAdds, true>;
  struct Channel {
    GradientLine<T> one, other;
  };
  static constexpr int kBlocksAtOnce = 2;
  T *dx, *other_dx;
  GradientLines<T> lines;
  int64_t channels;
  explicit InputGradients(const In& in) : In(in) {}
  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    GradientLine<T> one[V], other[V];
    lines.read(c, one);
    lines.read(channels + c, other);
    HN_UNROLL
    for (int v = 0; v < V; ++v) of[v] = {one[v], other[v]};
  }
  template <int V>
  __device__ void apply(const Channel (&of)[V], const typename In::template Row<V>& row,
                        int64_t at) const {
    Math<T> g[V], result[V], other_result[V];
    In::template dy<V>(row, nullptr, g);
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      result[v] = of[v].one.gradient(g[v], row[1].of[v]);
      other_result[v] = of[v].other.gradient(g[v], row[In::kOtherX].of[v]);
    }
    if (dx != nullptr) store_row(dx, at, result);
    if (other_dx != nullptr) store_row(other_dx, at, other_result);
  }
};

template <class T>
GradientInputs<T> inputs_of(const KernelBuffers& buffers) {
  return {buffers.in<T>(0),
          buffers.in<T>(cpu::kOneGrad.x),
          buffers.in<T>(cpu::kGradAddend),
          buffers.in<T>(cpu::kGradY),
          buffers.in<T>(cpu::kOtherGrad.x),
          buffers.in<uint8_t>(cpu::kGradSigns)};
}

/// The gradients of two normalizations that were added up, behind a Relu whose signs were kept.
template <class T, bool kAdds>
Prepared gradients_kernel(const KernelCall& call, const BatchNormGradPlan& plan) {
  const int64_t rows = plan.channels.per_channel(), channels = plan.channels.channels;
  const ChannelWalk sums = walk_for_sums<T>(rows, channels);
  const size_t lines_at = room_for_sums(sums, FinishGradients<T>::kSums);
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const GradientLines<T> lines(buffers.workspace + lines_at, 2 * channels);
    const NormGradientOperands o(types, buffers, cpu::kOneGrad),
        other(types, buffers, cpu::kOtherGrad);
    const Incoming<T, NormMask::kBits, kAdds, true> in(inputs_of<T>(buffers));
    run_sums<T>(stream, GradientsSums<T, kAdds>(in, o, other), sums, buffers.workspace);
    finish_channels(stream,
                    FinishGradients<T>{o, other, channels, static_cast<double>(rows), lines}, sums,
                    buffers.workspace);
    InputGradients<T, kAdds> elements(in);
    elements.dx = buffers.out<T>(cpu::kOneGrad.dx);
    elements.other_dx = buffers.out<T>(cpu::kOtherGrad.dx);
    elements.lines = lines;
    elements.channels = channels;
    if (elements.dx == nullptr && elements.other_dx == nullptr) return;
    run_elements<T>(stream, elements, walk_for_elements<T>(rows, channels));
  };
  const size_t workspace = lines_at + GradientLines<T>::bytes(2 * channels);
  return make_kernel(body, workspace, cpu::batch_norm_grads_in_place);
}

/// The gradient behind a Relu, or not; of a dY in two parts, whose sum is a result, or of one.
template <class T, NormMask kMask, bool kAdds>
Prepared gradient_kernel_of(const KernelCall& call, const BatchNormGradPlan& plan) {
  const int64_t rows = plan.channels.per_channel(), channels = plan.channels.channels;
  const ChannelWalk sums = walk_for_sums<T>(rows, channels);
  const size_t lines_at = room_for_sums(sums, FinishGradient<T>::kSums);
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    GradientInputs<T> of = inputs_of<T>(buffers);
    T *dx = buffers.out<T>(0), *kept = plan.keeps_sum ? buffers.out<T>(cpu::kGradSum) : nullptr;
    const GradientLines<T> lines(buffers.workspace + lines_at, channels);
    const NormGradientOperands o(types, buffers, cpu::kOneGrad);
    const Incoming<T, kMask, kAdds> in(of);
    run_sums<T>(stream, GradientSums<T, kMask, kAdds>(in, kept, o), sums, buffers.workspace);
    finish_channels(stream, FinishGradient<T>{o, static_cast<double>(rows), lines}, sums,
                    buffers.workspace);
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
  const size_t workspace = lines_at + GradientLines<T>::bytes(channels);
  return make_kernel(body, workspace, cpu::batch_norm_grad_in_place);
}

template <class T, NormMask kMask>
Prepared masked_gradient_kernel(const KernelCall& call, const BatchNormGradPlan& plan) {
  return plan.adds ? gradient_kernel_of<T, kMask, true>(call, plan)
                   : gradient_kernel_of<T, kMask, false>(call, plan);
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const BatchNormGradPlan& plan) {
  if constexpr (sizeof(T) == 2) {  // others have no signs
    if (plan.has_other)
      return plan.adds ? gradients_kernel<T, true>(call, plan)
                       : gradients_kernel<T, false>(call, plan);
  }
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

Prepared prepare_gradient(const KernelCall& call) {
  BatchNormGradPlan plan;
  if (std::string why = cpu::plan_batch_norm_grad(call, plan); !why.empty())
    return Prepared::no(why);
  return for_region_type(call.inputs[0].dtype,
                         [&]<class T>() { return gradient_kernel<T>(call, plan); });
}

BlockedOperands dy_x_and_dx(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  // Two parts are added up once, unless there is a second normalization.
  const bool has_other = call.has_input(cpu::kOtherGrad.x), keeps = call.has_output(cpu::kGradSum);
  if (call.has_input(cpu::kGradAddend) && !keeps && !has_other) return {};
  if (has_other && (keeps || !call.has_input(cpu::kGradSigns))) return {};
  if (call.has_input(cpu::kGradSigns) && !has_bytes_of_signs(call)) return {};
  const uint32_t inputs =
      inputs_there(call, {0, cpu::kOneGrad.x, cpu::kGradAddend, cpu::kGradY, cpu::kOtherGrad.x});
  return all_channels_last(
      call, inputs, outputs_there(call, {cpu::kOneGrad.dx, cpu::kGradSum, cpu::kOtherGrad.dx}));
}

}  // namespace

std::vector<BlockedRow> channels_last_batch_norm_grad() {
  return {{{"ai.halfnote", "BatchNormalizationGrad", "channels_last.batch_norm", prepare_gradient},
           "own.batch_norm",
           dy_x_and_dx}};
}

}  // namespace halfnote::HN_CUDA
