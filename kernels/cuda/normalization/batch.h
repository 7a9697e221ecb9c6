// What BatchNormalization computes with the sums of a channel, for every walk that takes them.
#pragma once

#include "kernels/cpu/normalization/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// In what an element is normalized: an f32 result is rounded once, as on the CPU.
template <class T>
using NormMath = std::conditional_t<std::is_same_v<T, float>, double, Math<T>>;

/// What an element of a channel needs: y = (x − mean)·factor + shift.
template <class T>
struct ChannelLine {
  using M = NormMath<T>;
  M mean, factor, shift;

  __device__ M at(T x) const { return (static_cast<M>(load_number(x)) - mean) * factor + shift; }
  /// What becomes y when it is stored.
  __device__ static Math<T> finished(M value, bool relu) {
    return static_cast<Math<T>>(relu && value < 0 ? M(0) : value);
  }
  /// Does a Relu behind y let the gradient of x's element through?
  __device__ bool lets_through(T x) const { return is_stored_positive<T>(at(x)); }
};

/// The line of channels whose statistics are read again as they were saved.
template <class T>
__device__ ChannelLine<T> line_of(double mean, double inv_std, double scale, double bias) {
  using M = NormMath<T>;
  return {static_cast<M>(mean), static_cast<M>(scale * inv_std), static_cast<M>(bias)};
}
template <class T>
__device__ double as_saved(double value) {
  return std::is_same_v<T, double> ? value : static_cast<double>(static_cast<float>(value));
}

/// Reads inputs and writes outputs by the types that the call gave them.
struct OperandTypes {
  std::vector<DType> inputs, outputs;

  explicit OperandTypes(const KernelCall& call) {
    for (size_t i = 0; i <= cpu::kOtherGrad.inv_std; ++i) inputs.push_back(type_of(call.inputs, i));
    for (size_t i = 0; i <= cpu::kOtherGrad.d_bias; ++i)
      outputs.push_back(type_of(call.outputs, i));
  }
  RealPointer in(const KernelBuffers& buffers, size_t i) const {
    return {buffers.in<std::byte>(i), inputs[i]};
  }
  RealOutput out(const KernelBuffers& buffers, size_t i) const {
    return {buffers.out<std::byte>(i), outputs[i]};
  }

 private:
  static DType type_of(const std::vector<Operand>& operands, size_t index) {
    return index < operands.size() ? operands[index].dtype : DType::kUndefined;
  }
};

/// The operands of a BatchNormalization that are one number a channel.
struct NormOperands {
  RealPointer scale, bias, mean, variance;
  RealPointer residual_scale, residual_bias, residual_mean, residual_inv_std;
  RealOutput running_mean, running_variance, saved_mean, saved_inv_std;

  NormOperands(const OperandTypes& types, const cpu::BatchNormPlan& plan,
               const KernelBuffers& buffers)
      : scale(types.in(buffers, 1)),
        bias(types.in(buffers, 2)),
        mean(types.in(buffers, 3)),
        variance(types.in(buffers, 4)),
        residual_scale(types.in(buffers, cpu::kNormLine)),
        residual_bias(types.in(buffers, cpu::kNormLine + 1)),
        residual_mean(types.in(buffers, cpu::kNormLine + 2)),
        residual_inv_std(types.in(buffers, cpu::kNormLine + 3)) {
    if (plan.of_batch) {
      running_mean = types.out(buffers, 1);
      running_variance = types.out(buffers, 2);
    }
    if (plan.saves) {
      saved_mean = types.out(buffers, 3);
      saved_inv_std = types.out(buffers, 4);
    }
  }

  /// The line by which channel c of the residual is normalized.
  template <class T>
  __device__ ChannelLine<T> of_residual(int64_t c) const {
    return line_of<T>(residual_mean[c], residual_inv_std[c], residual_scale[c], residual_bias[c]);
  }
  /// The line of channel c, and its results. `sum` and `squares` are those of the distances from
  /// `pivot`, of `count` elements.
  template <class T>
  __device__ ChannelLine<T> finish(const cpu::BatchNormPlan& plan, int64_t c, double pivot,
                                   double sum, double squares, double count) const {
    double line_mean, line_variance, line_scale, line_bias;
    if (are_f32(mean, variance, scale, bias)) {
      line_mean = f32_at(mean, c), line_variance = f32_at(variance, c);
      line_scale = f32_at(scale, c), line_bias = f32_at(bias, c);
    } else {
      line_mean = mean[c], line_variance = variance[c];
      line_scale = scale[c], line_bias = bias[c];
    }
    if (plan.of_batch) {
      const double shifted = sum / count;
      const double of_batch = squares / count - shifted * shifted;
      const double batch_mean = pivot + shifted;
      const double batch_variance = of_batch < 0 ? 0 : of_batch;  // NaN stays
      const double keep = plan.momentum;
      if (running_mean.data != nullptr)
        running_mean.write(c, line_mean * keep + batch_mean * (1 - keep));
      if (running_variance.data != nullptr)
        running_variance.write(c, line_variance * keep + batch_variance * (1 - keep));
      line_mean = batch_mean;
      line_variance = batch_variance;
    }
    double inv_std = 1 / math::sqrt(line_variance + plan.epsilon);
    if (saved_mean.data != nullptr) saved_mean.write(c, line_mean);
    if (saved_inv_std.data != nullptr) saved_inv_std.write(c, inv_std);
    if (plan.adds || plan.relu) {
      line_mean = as_saved<T>(line_mean);
      inv_std = as_saved<T>(inv_std);
    }
    return line_of<T>(line_mean, inv_std, line_scale, line_bias);
  }
};

/// dx = factor·(dy − offset − (x − mean)·slope), mean and factor being those of y.
template <class T>
struct GradientLine {
  using M = NormMath<T>;
  ChannelLine<T> y;
  M slope, offset;

  /// What becomes dx when it is stored.
  __device__ Math<T> gradient(Math<T> dy, T x) const {
    const M distance = static_cast<M>(load_number(x)) - y.mean;
    return static_cast<Math<T>>(y.factor * (static_cast<M>(dy) - offset - distance * slope));
  }
};

/// The operands of its gradient that are one number a channel.
struct NormGradientOperands {
  RealPointer scale, mean, inv_std, bias;
  RealOutput d_scale, d_bias;

  NormGradientOperands(const OperandTypes& types, const KernelBuffers& buffers,
                       const cpu::NormGradPlaces& at)
      : scale(types.in(buffers, at.scale)),
        mean(types.in(buffers, at.mean)),
        inv_std(types.in(buffers, at.inv_std)),
        bias(types.in(buffers, cpu::kGradBias)),
        d_scale(types.out(buffers, at.d_scale)),
        d_bias(types.out(buffers, at.d_bias)) {}

  /// How Y of the channels from c on was computed.
  template <class T, int V>
  __device__ void lines(int64_t c, ChannelLine<T> (&to)[V]) const {
    using M = NormMath<T>;
    if (are_f32(mean, inv_std, scale, bias)) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        to[v] = {f32_at(mean, c + v), M(f32_at(scale, c + v)) * M(f32_at(inv_std, c + v)),
                 f32_at(bias, c + v)};
      }
      return;
    }
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const double shift = bias.data == nullptr ? 0 : bias[c + v];
      to[v] = line_of<T>(mean[c + v], inv_std[c + v], scale[c + v], shift);
    }
  }
  template <class T>
  __device__ ChannelLine<T> line(int64_t c) const {
    ChannelLine<T> line[1];
    lines(c, line);
    return line[0];
  }
  /// Of each line only the mean.
  template <class T, int V>
  __device__ void means(int64_t c, ChannelLine<T> (&to)[V]) const {
    if (are_f32(mean)) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) to[v] = {f32_at(mean, c + v), 0, 0};
      return;
    }
    HN_UNROLL
    for (int v = 0; v < V; ++v) to[v] = {static_cast<NormMath<T>>(mean[c + v]), 0, 0};
  }
  /// `sum` is that of dy, `product` that of dy times the normalized x, over `count` elements.
  template <class T>
  __device__ GradientLine<T> finish(int64_t c, double sum, double product, double count) const {
    if (d_scale.data != nullptr) d_scale.write(c, product);
    if (d_bias.data != nullptr) d_bias.write(c, sum);
    using M = NormMath<T>;
    return {line<T>(c), static_cast<M>(product / count * inv_std[c]), static_cast<M>(sum / count)};
  }
};

}  // namespace halfnote::HN_CUDA
