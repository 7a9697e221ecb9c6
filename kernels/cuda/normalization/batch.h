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
  __device__ static T rounded(M value) { return store_number<T>(static_cast<Math<T>>(value)); }
  __device__ static T finished(M value, bool relu) {
    return rounded(relu && value < 0 ? M(0) : value);
  }
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
    for (size_t i = 0; i <= cpu::kGradBias; ++i) inputs.push_back(type_of(call.inputs, i));
    for (size_t i = 0; i < 5; ++i) outputs.push_back(type_of(call.outputs, i));
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
  RealOutput running_mean, running_variance, saved_mean, saved_inv_std;

  NormOperands(const OperandTypes& types, const cpu::BatchNormPlan& plan,
               const KernelBuffers& buffers)
      : scale(types.in(buffers, 1)),
        bias(types.in(buffers, 2)),
        mean(types.in(buffers, 3)),
        variance(types.in(buffers, 4)) {
    if (plan.of_batch) {
      running_mean = types.out(buffers, 1);
      running_variance = types.out(buffers, 2);
    }
    if (plan.saves) {
      saved_mean = types.out(buffers, 3);
      saved_inv_std = types.out(buffers, 4);
    }
  }

  /// The line of channel c, and its results. `sum` and `squares` are those of the distances from
  /// `pivot`, of `count` elements.
  template <class T>
  __device__ ChannelLine<T> finish(const cpu::BatchNormPlan& plan, int64_t c, double pivot,
                                   double sum, double squares, double count) const {
    double line_mean = mean[c], line_variance = variance[c];
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
    return line_of<T>(line_mean, inv_std, scale[c], bias[c]);
  }
};

/// dx = factor·(dy − offset − (x − mean)·slope), mean and factor being those of y.
template <class T>
struct GradientLine {
  using M = NormMath<T>;
  ChannelLine<T> y;
  M slope, offset;

  __device__ T gradient(T dy, T x) const {
    const M distance = static_cast<M>(load_number(x)) - y.mean;
    const M value = y.factor * (static_cast<M>(load_number(dy)) - offset - distance * slope);
    return store_number<T>(static_cast<Math<T>>(value));
  }
};

/// The sum of two parts of dY, rounded as an Add of theirs would be.
template <class T>
__device__ T sum_of_parts(T dy, T addend) {
  return store_number<T>(load_number(dy) + load_number(addend));
}
/// dY of an element behind a Relu.
template <class T>
__device__ T masked_by(T dy, T y) {
  return load_number(y) > 0 ? dy : store_number<T>(Math<T>(0));
}

/// The operands of its gradient that are one number a channel.
struct GradientOperands {
  RealPointer scale, mean, inv_std, bias;
  RealOutput d_scale, d_bias;

  GradientOperands(const OperandTypes& types, const KernelBuffers& buffers)
      : scale(types.in(buffers, 2)),
        mean(types.in(buffers, 3)),
        inv_std(types.in(buffers, 4)),
        bias(types.in(buffers, cpu::kGradBias)),
        d_scale(types.out(buffers, 1)),
        d_bias(types.out(buffers, 2)) {}

  /// How Y of channel c was computed.
  template <class T>
  __device__ ChannelLine<T> line(int64_t c) const {
    return line_of<T>(mean[c], inv_std[c], scale[c], bias.data == nullptr ? 0 : bias[c]);
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
