// LayerNormalization. Lines of up to 8192 elements are kept in registers (held.h), with sums in
// f32, in f64 for f64; longer ones, and parameters of mixed types, are read three times by a block
// of threads a line.
#include "kernels/cuda/normalization/held.h"
#include "kernels/cuda/normalization/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::model_error;

/// What the forward writes beside Y, and how far it goes from a variance of 0.
struct LayerStatistics {
  RealOutput mean, inv_std;
  double epsilon;
};

constexpr float kLargest = 3.402823466e38f;

/// Mean and 1 / standard deviation of a line.
template <class M>
struct Moments {
  M mean, inv_std;
};

/// With sums in f64, for lines whose squares are too large for f32.
template <int V, int kPacks, unsigned kLanes, class Pack>
__device__ Moments<float> wide_moments(const Pack (&own)[kPacks], int64_t length, double epsilon) {
  double sum = 0, squares = 0;
  for_packs<V, kPacks, kLanes>(length, [&](int k, int) {
    for (int v = 0; v < V; ++v) sum += static_cast<double>(load_number(own[k].of[v]));
  });
  const double mean = sum_of_line<kLanes>(sum) / static_cast<double>(length);
  for_packs<V, kPacks, kLanes>(length, [&](int k, int) {
    for (int v = 0; v < V; ++v) {
      const double distance = static_cast<double>(load_number(own[k].of[v])) - mean;
      squares += distance * distance;
    }
  });
  const double variance = sum_of_line<kLanes>(squares) / static_cast<double>(length);
  return {static_cast<float>(mean), static_cast<float>(1 / math::sqrt(variance + epsilon))};
}

/// The mean is corrected by that of the distances from it: f32 has that of the CPU's f64 so.
template <class T, class P, int V, unsigned kLanes>
__global__ void __launch_bounds__(kHeldBlock)
    layer_norm_held(const T* x, const P* scale, const P* bias, T* y, LayerStatistics statistics,
                    Lines lines) {
  using M = Math<T>;
  constexpr int kPacks = kHeld<M> / V;
  constexpr int64_t kGroups = kHeldBlock / kLanes;
  const M count = static_cast<M>(lines.length);
  for (int64_t line = blockIdx.x * kGroups + threadIdx.x / kLanes; line < lines.count;
       line += gridDim.x * kGroups) {
    const int64_t first = line * lines.length;
    Packed<T, V> own[kPacks];
    for_packs<V, kPacks, kLanes>(lines.length,
                                 [&](int k, int i) { own[k] = load_packed<V>(x + first + i); });
    M sum = 0, rest = 0, squares = 0;
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) sum += load_number(own[k].of[v]);
    });
    M mean = sum_of_line<kLanes>(sum) / count;
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M distance = load_number(own[k].of[v]) - mean;
        rest += distance;
        squares += distance * distance;
      }
    });
    rest = sum_of_line<kLanes>(rest) / count;
    mean += rest;
    const M variance = sum_of_line<kLanes>(squares) / count - rest * rest;
    M inv_std = 1 / math::sqrt(variance + static_cast<M>(statistics.epsilon));
    if constexpr (sizeof(M) == sizeof(float)) {
      // All threads of the line agree.
      if (!(variance <= kLargest)) {
        const auto wide = wide_moments<V, kPacks, kLanes>(own, lines.length, statistics.epsilon);
        mean = wide.mean;
        inv_std = wide.inv_std;
      }
    }
    if (threadIdx.x % kLanes == 0) {
      if (statistics.mean.data != nullptr) statistics.mean.write(line, mean);
      if (statistics.inv_std.data != nullptr) statistics.inv_std.write(line, inv_std);
    }
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      const Packed<P, V> factors = load_packed<V>(scale + i);
      Packed<P, V> shifts = {};
      if (bias != nullptr) shifts = load_packed<V>(bias + i);
      Packed<T, V> to;
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        M value = (load_number(own[k].of[v]) - mean) * inv_std * load_number(factors.of[v]);
        if (bias != nullptr) value += load_number(shifts.of[v]);
        to.of[v] = store_number<T>(value);
      }
      store_packed(y + first + i, to);
    });
  }
}

template <class T, class P>
Prepared held_layer_norm(const KernelCall& call, const Lines& lines) {
  const HeldLines held = HeldLines::plan<Math<T>>(lines, 0);
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  return make_kernel([=, has_bias = call.has_input(2), mean_type = type_of(call, 1),
                      inv_type = type_of(call, 2)](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    const P *scale = buffers.in<P>(1), *bias = has_bias ? buffers.in<P>(2) : nullptr;
    T* y = buffers.out<T>(0);
    const LayerStatistics statistics = {
        {buffers.out<std::byte>(1), mean_type}, {buffers.out<std::byte>(2), inv_type}, epsilon};
    const bool in_packs = lines.length % (16 / static_cast<int64_t>(sizeof(T))) == 0 &&
                          are_aligned<4>({x, scale, bias, y});
    for_held<T>(held, in_packs, [&]<int V, unsigned kLanes>() {
      launch(stream_of(buffers), layer_norm_held<T, P, V, kLanes>,
             static_cast<unsigned>(held.blocks), kHeldBlock, 0, x, scale, bias, y, statistics,
             lines);
    });
  });
}

/// Is the line short enough, with a scale and a bias of one type that kernels are compiled for?
template <class T>
bool can_hold_layer(const KernelCall& call, const Lines& lines) {
  const DType type = call.inputs[1].dtype;
  const bool fits = type == dtype_of<T>() || (sizeof(T) == 2 && type == DType::kF32);
  if (!fits || lines.length > kBlockLine<Math<T>> || call.inputs[1].size() != lines.length)
    return false;
  return !call.has_input(2) ||
         (call.inputs[2].dtype == type && call.inputs[2].size() == lines.length);
}

template <class T>
__global__ void __launch_bounds__(kLineBlock)
    layer_norm_lines(const T* x, LineParameter scale, LineParameter bias, T* y, RealOutput mean_out,
                     RealOutput inv_std_out, Lines lines, double epsilon) {
  using M = Math<T>;
  const double count = static_cast<double>(lines.length);
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const T* own = x + line * lines.length;
    double sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) sum += load_number(own[i]);
    const double mean = merge_block<AddNumbers, kLineBlock>(sum) / count;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double distance = load_number(own[i]) - mean;
      squares += distance * distance;
    }
    const double variance = merge_block<AddNumbers, kLineBlock>(squares) / count;
    const double inv_std = 1 / math::sqrt(variance + epsilon);
    if (threadIdx.x == 0) {
      if (mean_out.data != nullptr) mean_out.write(line, mean);
      if (inv_std_out.data != nullptr) inv_std_out.write(line, inv_std);
    }
    const M center = static_cast<M>(mean), slope = static_cast<M>(inv_std);
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      M value = (load_number(own[i]) - center) * slope;
      value *= static_cast<M>(scale[i]);
      if (bias.values.data != nullptr) value += static_cast<M>(bias[i]);
      y[line * lines.length + i] = store_number<T>(value);
    }
  }
}

Prepared prepare_layer_norm(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    throw model_error(call, "X, scale or Y is missing");
  }
  const Lines lines =
      cpu::lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  if (std::string why = cpu::float_refusal(call); !why.empty()) return Prepared::no(why);
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  if (!spans_line(call, 1, lines) || (call.has_input(2) && !spans_line(call, 2, lines))) {
    return Prepared::no("a scale or bias that differs from line to line");
  }
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    if (can_hold_layer<T>(call, lines)) {
      return for_scale_type<T>(call.inputs[1].dtype,
                               [&]<class P>() { return held_layer_norm<T, P>(call, lines); });
    }
    const auto step = [&](size_t input) -> int64_t {
      return call.has_input(input) && call.inputs[input].size() != 1 ? 1 : 0;
    };
    const auto body =
        [=, scale_step = step(1), bias_step = step(2), scale_type = call.inputs[1].dtype,
         bias_type = call.has_input(2) ? call.inputs[2].dtype : DType::kUndefined,
         mean_type = type_of(call, 1), inv_type = type_of(call, 2)](const KernelBuffers& buffers) {
          const LineParameter scale{{buffers.inputs[1], scale_type}, scale_step};
          const LineParameter bias{{buffers.in<std::byte>(2), bias_type}, bias_step};
          launch(stream_of(buffers), layer_norm_lines<T>, line_blocks(lines.count), kLineBlock, 0,
                 buffers.in<T>(0), scale, bias, buffers.out<T>(0),
                 RealOutput{buffers.out<std::byte>(1), mean_type},
                 RealOutput{buffers.out<std::byte>(2), inv_type}, lines, epsilon);
        };
    return make_kernel(body);
  });
}

}  // namespace

std::vector<KernelRow> layer_norm_rows() {
  return {
      {"", "LayerNormalization", "own.layer_norm", prepare_layer_norm},
      layer_grad_row(),
  };
}

}  // namespace halfnote::HN_CUDA
