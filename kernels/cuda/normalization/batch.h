// What BatchNormalization computes with the sums of a channel, for every walk that takes them.
#pragma once

#include "kernels/cpu/normalization/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// What an element of a channel needs: y = (x − mean)·factor + shift.
struct ChannelLine {
  double mean, factor, shift;

  template <class T>
  __device__ T normalized(T x) const {
    // An f32 result is rounded once, as on the CPU.
    using Wide = std::conditional_t<std::is_same_v<T, float>, double, Math<T>>;
    const Wide value =
        (static_cast<Wide>(load_number(x)) - static_cast<Wide>(mean)) * static_cast<Wide>(factor) +
        static_cast<Wide>(shift);
    return store_number<T>(static_cast<Math<T>>(value));
  }
};

/// Reads inputs and writes outputs by the types that the call gave them.
struct OperandTypes {
  std::vector<DType> inputs, outputs;

  explicit OperandTypes(const KernelCall& call) {
    for (size_t i = 0; i < 5; ++i) inputs.push_back(type_of(call.inputs, i));
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
  __device__ ChannelLine finish(const cpu::BatchNormPlan& plan, int64_t c, double pivot, double sum,
                                double squares, double count) const {
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
    const double inv_std = 1 / math::sqrt(line_variance + plan.epsilon);
    if (saved_mean.data != nullptr) saved_mean.write(c, line_mean);
    if (saved_inv_std.data != nullptr) saved_inv_std.write(c, inv_std);
    return {line_mean, scale[c] * inv_std, bias[c]};
  }
};

/// dx = factor·(dy − offset − (x − mean)·slope)
struct GradientLine {
  double mean, factor, slope, offset;

  template <class T>
  __device__ T gradient(T dy, T x) const {
    const double distance = load_number(x) - mean;
    return store_number<T>(
        static_cast<Math<T>>(factor * (load_number(dy) - offset - distance * slope)));
  }
};

/// The operands of its gradient that are one number a channel.
struct GradientOperands {
  RealPointer scale, mean, inv_std;
  RealOutput d_scale, d_bias;

  GradientOperands(const OperandTypes& types, const KernelBuffers& buffers)
      : scale(types.in(buffers, 2)),
        mean(types.in(buffers, 3)),
        inv_std(types.in(buffers, 4)),
        d_scale(types.out(buffers, 1)),
        d_bias(types.out(buffers, 2)) {}

  /// `sum` is that of dy, `product` that of dy times the normalized x, over `count` elements.
  __device__ GradientLine finish(int64_t c, double sum, double product, double count) const {
    if (d_scale.data != nullptr) d_scale.write(c, product);
    if (d_bias.data != nullptr) d_bias.write(c, sum);
    return {mean[c], scale[c] * inv_std[c], product / count * inv_std[c], sum / count};
  }
};

}  // namespace halfnote::HN_CUDA
