// LayerNormalization and RMSNormalization, plain and with the sum before them:
//
//   Y, … = LayerNormalization (X, scale, B)
//   Y, …, sum = ai.halfnote.LayerNormalization (X, scale, B, residual)   sum = X + residual,
//   rounded
//
// Lines of up to 8192 elements are kept in registers (held.h), with sums in f32, in f64 for f64;
// longer ones, and parameters of mixed types or of other shapes, are read three times by a block of
// threads a line.
#pragma once

#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cuda/normalization/held.h"
#include "kernels/cuda/normalization/parts.h"

namespace halfnote::HN_CUDA {

/// By mean and deviation, or by the root of the mean square alone: as with a mean of 0.
enum class LineNorm { kLayer, kRms };

/// What is normalized: X, or its sum with a residual, as it is rounded to T.
template <class T>
struct NormOperand {
  const T* x;
  const T* residual;  // may be null
  T* sum;             // may be null
};

/// Mean of a line and 1 / what it is divided by.
template <class M>
struct Moments {
  M mean, inv_std;
};

/// What the forward writes beside Y, and how far it goes from a variance of 0.
struct LineStatistics {
  RealOutput mean, inv_std;
  double epsilon;
  template <class M>
  __device__ void write(int64_t line, const Moments<M>& of) const {
    if (mean.data != nullptr) mean.write(line, of.mean);
    if (inv_std.data != nullptr) inv_std.write(line, of.inv_std);
  }
};

inline constexpr float kLargest = 3.402823466e38f;

// --- lines in registers --------------------------------------------------------------------------

/// With sums in f64, for lines whose squares are too large for f32.
template <LineNorm kNorm, int V, int kPacks, unsigned kLanes, class Pack>
__device__ Moments<float> wide_moments(const Pack (&own)[kPacks], int64_t length, double epsilon) {
  double mean = 0, squares = 0;
  if constexpr (kNorm == LineNorm::kLayer) {
    for_packs<V, kPacks, kLanes>(length, [&](int k, int) {
      for (int v = 0; v < V; ++v) mean += static_cast<double>(load_number(own[k].of[v]));
    });
    mean = sum_of_line<kLanes>(mean) / static_cast<double>(length);
  }
  for_packs<V, kPacks, kLanes>(length, [&](int k, int) {
    for (int v = 0; v < V; ++v) {
      const double distance = static_cast<double>(load_number(own[k].of[v])) - mean;
      squares += distance * distance;
    }
  });
  const double variance = sum_of_line<kLanes>(squares) / static_cast<double>(length);
  return {static_cast<float>(mean), static_cast<float>(1 / math::sqrt(variance + epsilon))};
}

/// Of a line in registers; all of its threads get them. The mean is corrected by that of the
/// distances from it: f32 has that of the CPU's f64 so.
template <LineNorm kNorm, class M, int V, int kPacks, unsigned kLanes, class Pack>
__device__ __forceinline__ Moments<M> moments_of_line(const Pack (&own)[kPacks], int64_t length,
                                                      double epsilon) {
  const M count = static_cast<M>(length);
  M mean = 0, rest = 0, squares = 0;
  if constexpr (kNorm == LineNorm::kLayer) {
    for_packs<V, kPacks, kLanes>(length, [&](int k, int) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) mean += load_number(own[k].of[v]);
    });
    mean = sum_of_line<kLanes>(mean) / count;
  }
  for_packs<V, kPacks, kLanes>(length, [&](int k, int) {
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const M distance = load_number(own[k].of[v]) - mean;
      rest += distance;
      squares += distance * distance;
    }
  });
  M variance = sum_of_line<kLanes>(squares) / count;
  if constexpr (kNorm == LineNorm::kLayer) {
    rest = sum_of_line<kLanes>(rest) / count;
    mean += rest;
    variance -= rest * rest;
  }
  if constexpr (sizeof(M) == sizeof(float)) {
    // All threads of the line agree.
    if (!(variance <= kLargest))
      return wide_moments<kNorm, V, kPacks, kLanes>(own, length, epsilon);
  }
  return {mean, 1 / math::sqrt(variance + static_cast<M>(epsilon))};
}

/// Of two packs, rounded to their type.
template <class T, int V>
__device__ __forceinline__ void add_pack(Packed<T, V>& to, const T* more) {
  const Packed<T, V> other = load_packed<V>(more);
  Math<T> sums[V];
  HN_UNROLL
  for (int v = 0; v < V; ++v) sums[v] = load_number(to.of[v]) + load_number(other.of[v]);
  to = pack_of<T>(sums);
}

template <LineNorm kNorm, class T, class P, class Y, int V, unsigned kLanes>
__global__ void __launch_bounds__(kHeldBlock)
    norm_held(NormOperand<T> from, const P* scale, const P* bias, Y* y, LineStatistics statistics,
              Lines lines) {
  using M = Math<T>;
  constexpr int kPacks = kHeld<M> / V;
  constexpr int64_t kGroups = kHeldBlock / kLanes;
  for (int64_t line = blockIdx.x * kGroups + threadIdx.x / kLanes; line < lines.count;
       line += gridDim.x * kGroups) {
    const int64_t first = line * lines.length;
    Packed<T, V> own[kPacks];
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      own[k] = load_packed<V>(from.x + first + i);
      if (from.residual != nullptr) add_pack<T, V>(own[k], from.residual + first + i);
      if (from.sum != nullptr) store_packed(from.sum + first + i, own[k]);
    });
    const Moments<M> of =
        moments_of_line<kNorm, M, V, kPacks, kLanes>(own, lines.length, statistics.epsilon);
    if (threadIdx.x % kLanes == 0) statistics.write(line, of);
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      const Packed<P, V> factors = load_packed<V>(scale + i);
      Packed<P, V> shifts = {};
      if (bias != nullptr) shifts = load_packed<V>(bias + i);
      M values[V];
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        values[v] = (load_number(own[k].of[v]) - of.mean) * of.inv_std * load_number(factors.of[v]);
        if (bias != nullptr) values[v] += load_number(shifts.of[v]);
      }
      store_packed(y + first + i, pack_of<Y>(values));
    });
  }
}

/// Where the operands of a call stand that not all norms have.
struct NormPlaces {
  size_t bias = 0, residual = 0, sum = 0;  // 0: there is none
  template <LineNorm kNorm>
  static NormPlaces of(const KernelCall& call) {
    const size_t residual = kNorm == LineNorm::kLayer ? cpu::kLayerResidual : cpu::kRmsResidual;
    const size_t sum = kNorm == LineNorm::kLayer ? cpu::kLayerSum : cpu::kRmsSum;
    NormPlaces places;
    if (kNorm == LineNorm::kLayer && call.has_input(2)) places.bias = 2;
    if (call.has_input(residual)) places.residual = residual;
    if (call.has_output(sum)) places.sum = sum;
    return places;
  }
  template <class T>
  NormOperand<T> operand(const KernelBuffers& buffers) const {
    return {buffers.in<T>(0), residual != 0 ? buffers.in<T>(residual) : nullptr,
            sum != 0 ? buffers.out<T>(sum) : nullptr};
  }
  /// The sum is written where its operands are read, by the same threads.
  auto in_place() const {
    return [of = *this](size_t input, size_t output) {
      return of.sum != 0 && output == of.sum && (input == 0 || input == of.residual);
    };
  }
};

/// Statistics as the call asks for them.
template <LineNorm kNorm>
LineStatistics statistics_of(const KernelCall& call) {
  LineStatistics statistics{};
  statistics.epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  if (kNorm == LineNorm::kLayer) {
    statistics.mean.dtype = type_of(call, 1);
    statistics.inv_std.dtype = type_of(call, 2);
  }
  return statistics;
}

template <LineNorm kNorm>
LineStatistics placed(LineStatistics statistics, const KernelBuffers& buffers) {
  if (kNorm == LineNorm::kLayer) {
    statistics.mean.data = buffers.out<std::byte>(1);
    statistics.inv_std.data = buffers.out<std::byte>(2);
  }
  return statistics;
}

template <LineNorm kNorm, class T, class P, class Y>
Prepared held_norm(const KernelCall& call, const Lines& lines) {
  const HeldLines held = HeldLines::plan<Math<T>>(lines, 0);
  const NormPlaces places = NormPlaces::of<kNorm>(call);
  const auto body = [=, asked = statistics_of<kNorm>(call)](const KernelBuffers& buffers) {
    const NormOperand<T> from = places.operand<T>(buffers);
    const P* scale = buffers.in<P>(1);
    const P* bias = places.bias != 0 ? buffers.in<P>(places.bias) : nullptr;
    Y* y = buffers.out<Y>(0);
    const LineStatistics statistics = placed<kNorm>(asked, buffers);
    const bool in_packs = lines.length % (16 / static_cast<int64_t>(sizeof(T))) == 0 &&
                          are_aligned<6>({from.x, from.residual, from.sum, scale, bias, y});
    for_held<T>(held, in_packs, [&]<int V, unsigned kLanes>() {
      launch(stream_of(buffers), norm_held<kNorm, T, P, Y, V, kLanes>,
             static_cast<unsigned>(held.blocks), kHeldBlock, 0, from, scale, bias, y, statistics,
             lines);
    });
  };
  return make_kernel(body, 0, places.in_place());
}

/// Is the line short enough, with a scale and a bias of one type that kernels are compiled for?
template <LineNorm kNorm, class T>
bool can_hold(const KernelCall& call, const Lines& lines) {
  const DType type = call.inputs[1].dtype;
  const bool fits = type == dtype_of<T>() || (sizeof(T) == 2 && type == DType::kF32);
  if (!fits || lines.length > kBlockLine<Math<T>> || call.inputs[1].size() != lines.length)
    return false;
  if (kNorm == LineNorm::kRms) return call.outputs[0].dtype == type;
  return !call.has_input(2) ||
         (call.inputs[2].dtype == type && call.inputs[2].size() == lines.length);
}

// --- lines read again ----------------------------------------------------------------------------

template <class T>
struct AddResidual {
  NormOperand<T> of;
  __device__ void operator()(int64_t i) const {
    of.sum[i] = store_number<T>(load_number(of.x[i]) + load_number(of.residual[i]));
  }
};

/// Mean and 1 / standard deviation; every thread of the block gets them.
template <LineNorm kNorm, class T>
__device__ Moments<double> moments_in_loops(const T* own, int64_t length, double epsilon) {
  const double count = static_cast<double>(length);
  double mean = 0, squares = 0;
  if constexpr (kNorm == LineNorm::kLayer) {
    for (int64_t i = threadIdx.x; i < length; i += kLineBlock) mean += load_number(own[i]);
    mean = merge_block<AddNumbers, kLineBlock>(mean) / count;
  }
  for (int64_t i = threadIdx.x; i < length; i += kLineBlock) {
    const double distance = load_number(own[i]) - mean;
    squares += distance * distance;
  }
  const double variance = merge_block<AddNumbers, kLineBlock>(squares) / count;
  return {mean, 1 / math::sqrt(variance + epsilon)};
}

/// A scale or bias that broadcasts to X in any way: `along` a line, or over all of X.
struct NormParameter {
  LineParameter along;
  Strided<1> over;  // without elements where `along` says it all
  __device__ double at(int64_t first, int64_t i) const {
    if (over.count == 0) return along[i];
    int64_t offset[1];
    over.offsets(first + i, offset);
    return along.values[offset[0]];
  }
};

template <LineNorm kNorm, class T>
__global__ void __launch_bounds__(kLineBlock)
    norm_lines(const T* x, const __grid_constant__ NormParameter scale,
               const __grid_constant__ NormParameter bias, RealOutput y, LineStatistics statistics,
               Lines lines) {
  using M = Math<T>;
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t first = line * lines.length;
    const auto of = moments_in_loops<kNorm>(x + first, lines.length, statistics.epsilon);
    if (threadIdx.x == 0) statistics.write(line, of);
    const M center = static_cast<M>(of.mean), slope = static_cast<M>(of.inv_std);
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      M value = (load_number(x[first + i]) - center) * slope;
      value *= static_cast<M>(scale.at(first, i));
      if (bias.along.values.data != nullptr) value += static_cast<M>(bias.at(first, i));
      y.write(first + i, value);
    }
  }
}

/// Plans parameter `input`, if it is not 0; a reason if it has too many dims.
inline std::string plan_parameter(const KernelCall& call, size_t input, const Lines& lines,
                                  NormParameter& to) {
  if (input == 0) return {};
  const Operand& own = call.inputs[input];
  to.along.values.dtype = own.dtype;
  to.along.step = own.size() != 1 ? 1 : 0;
  if (spans_line(call, input, lines)) return {};
  const Runs runs = cpu::plan_broadcast({own.shape}, call.inputs[0].shape);
  return as_strided(runs, to.over) ? "" : too_many_dims();
}

template <LineNorm kNorm, class T>
Prepared looped_norm(const KernelCall& call, const Lines& lines) {
  const NormPlaces places = NormPlaces::of<kNorm>(call);
  NormParameter scale, bias;
  if (std::string why = plan_parameter(call, 1, lines, scale); !why.empty())
    return Prepared::no(why);
  if (std::string why = plan_parameter(call, places.bias, lines, bias); !why.empty())
    return Prepared::no(why);
  // A sum that is not asked for is kept beside.
  const int64_t count = call.inputs[0].size();
  const size_t room =
      places.residual != 0 && places.sum == 0 ? static_cast<size_t>(count) * sizeof(T) : 0;
  const auto body = [=, y_type = call.outputs[0].dtype,
                     statistics = statistics_of<kNorm>(call)](const KernelBuffers& buffers) {
    NormOperand<T> from = places.operand<T>(buffers);
    NormParameter factors = scale, shifts = bias;
    factors.along.values.data = buffers.inputs[1];
    if (places.bias != 0) shifts.along.values.data = buffers.inputs[places.bias];
    if (from.residual != nullptr) {
      if (from.sum == nullptr) from.sum = reinterpret_cast<T*>(buffers.workspace);
      for_each(stream_of(buffers), count, AddResidual<T>{from});
    }
    launch(stream_of(buffers), norm_lines<kNorm, T>, line_blocks(lines.count), kLineBlock, 0,
           from.residual != nullptr ? from.sum : from.x, factors, shifts,
           RealOutput{buffers.outputs[0], y_type}, placed<kNorm>(statistics, buffers), lines);
  };
  return make_kernel(body, room, places.in_place());
}

// --- rows ----------------------------------------------------------------------------------------

/// The reason why the call has no kernel, or an empty string.
template <LineNorm kNorm>
std::string norm_refusal(const KernelCall& call) {
  if (std::string why = cpu::float_refusal(call); !why.empty()) return why;
  if (kNorm == LineNorm::kLayer && call.outputs[0].dtype != call.inputs[0].dtype)
    return "X and Y of different types";
  const NormPlaces places = NormPlaces::of<kNorm>(call);
  return cpu::residual_refusal(call, places.residual, places.sum);
}

template <LineNorm kNorm>
Prepared prepare_norm(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    throw cpu::model_error(call, "X, scale or Y is missing");
  }
  const Lines lines =
      cpu::lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  if (std::string why = norm_refusal<kNorm>(call); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    if (!can_hold<kNorm, T>(call, lines)) return looped_norm<kNorm, T>(call, lines);
    return for_scale_type<T>(call.inputs[1].dtype, [&]<class P>() {
      using Y = std::conditional_t<kNorm == LineNorm::kLayer, T, P>;
      return held_norm<kNorm, T, P, Y>(call, lines);
    });
  });
}

}  // namespace halfnote::HN_CUDA
