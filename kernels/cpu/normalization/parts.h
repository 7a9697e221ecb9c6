// The rows of the normalization family, file by file, and what they share.
#pragma once

#include <vector>

#include "kernels/cpu/reals.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

std::vector<KernelRow> batch_norm_rows();  // batch.cc: BatchNormalization and its gradient
std::vector<KernelRow> layer_norm_rows();  // layer.cc: LayerNormalization, RMSNormalization
std::vector<KernelRow> layer_grad_rows();  // layer_grad.cc: LayerNormalizationGrad
std::vector<KernelRow> group_grad_rows();  // group_grad.cc: Group- and RMSNormalizationGrad
std::vector<KernelRow> group_norm_rows();  // group.cc: InstanceNormalization, GroupNormalization
std::vector<KernelRow>
local_norm_rows();                      // local.cc: LpNormalization, LRN, MeanVarianceNormalization
std::vector<KernelRow> softmax_rows();  // softmax.cc: Softmax, LogSoftmax, Hardmax
std::vector<KernelRow> softmax_grad_rows();  // softmax_grad.cc: SoftmaxGrad, LogSoftmaxGrad

/// A tensor seen as lines along one axis: line l starts at start(l), its elements are `stride`
/// apart, and `padding` more lie behind them that are no part of it.
struct Lines {
  int64_t count = 0, length = 0, stride = 1, padding = 0;
  int64_t start(int64_t line) const {
    return line / stride * (length + padding) * stride + line % stride;
  }
  /// Lines of a parallel block: about kElementGrain elements.
  int64_t grain() const {
    return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, length));
  }
};

/// The lines along `axis`, which may be negative.
Lines lines_along(const Shape& shape, int64_t axis);
/// Lines that span all dims from `axis` on (contiguous).
Lines lines_from(const Shape& shape, int64_t axis);

/// X of a BatchNormalization as (images, channels, plane).
struct Channels {
  int64_t images = 0, channels = 1, plane = 1;
  int64_t per_channel() const { return images * plane; }
  /// Bytes of the signs of Y: those of all channels of a pixel side by side, eight a byte, the
  /// first in the lowest bit; 1 where Y is above 0.
  int64_t sign_bytes() const { return per_channel() * channels / 8; }
};
/// Throws Error(kModel) if the input is missing or a scalar.
Channels plan_channels(const KernelCall& call, size_t input);

struct BatchNormPlan {
  Channels channels;
  bool of_batch = false;  // statistics of the batch, not those given
  bool saves = false;     // writes mean and 1/σ for the gradient
  // Y = relu(norm + residual), computed from the statistics as they are saved: the gradient finds
  // the sign of Y again.
  bool adds = false, relu = false;
  bool adds_line = false;    // what is added is normalized too, by statistics that were saved
  bool keeps_signs = false;  // those of Y are a result
  double epsilon = 0, momentum = 0;
};

/// The operands that a BatchNormalization and its gradient may have, and their results, by their
/// places.
inline constexpr size_t kNormResidual = 5, kNormSigns = 5;
/// Scale, bias, saved mean and 1/σ that normalize the residual.
inline constexpr size_t kNormLine = 6;
inline constexpr size_t kGradAddend = 5, kGradY = 6, kGradBias = 7, kGradSigns = 8, kGradSum = 3;
/// A gradient's operands and results that are of one normalization.
struct NormGradPlaces {
  size_t x, scale, mean, inv_std, dx, d_scale, d_bias;
};
inline constexpr NormGradPlaces kOneGrad{1, 2, 3, 4, 0, 1, 2};
/// Those of a second one, whose result was added to that of the first: dY is the same.
inline constexpr NormGradPlaces kOtherGrad{9, 10, 11, 12, 4, 5, 6};

/// Where a Relu stood between the BatchNormalization and dY.
enum class NormMask {
  kNone,
  kY,     // where Y is not above 0, dY counts as 0
  kLine,  // the same, Y being computed again from X
  kBits,  // the same, by the signs of Y
};

struct BatchNormGradPlan {
  Channels channels;
  bool adds = false;  // dY comes in two parts
  NormMask mask = NormMask::kNone;
  bool keeps_sum = false;  // dY as it counts is a result
  bool has_other = false;  // there is a second normalization
};
/// May the result be written over the operand? The sum is written before X is read for the last
/// time.
bool batch_norm_in_place(size_t input, size_t output);
bool batch_norm_grad_in_place(size_t input, size_t output);
/// Where both gradients of an element are written together.
bool batch_norm_grads_in_place(size_t input, size_t output);
/// Does a BatchNormalization take the statistics that are given?
bool in_inference(const KernelCall& call);
/// The reason why the call has no kernel, or an empty string; Error(kModel) for shapes that do not
/// fit.
std::string plan_batch_norm(const KernelCall& call, BatchNormPlan& plan);
std::string plan_batch_norm_grad(const KernelCall& call, BatchNormGradPlan& plan);
/// Does a BatchNormalization or its gradient more than without the operands of `fuse-norms`?
bool has_fused_parts(const KernelCall& call);

/// Where Layer- and RMSNormalization have the residual that is added to X, and the sum; in their
/// gradients dY2, which is added to dY, and behind it dX2, which is added to dX.
inline constexpr size_t kLayerResidual = 3, kLayerSum = 3, kRmsResidual = 2, kRmsSum = 1;
inline constexpr size_t kLayerGradMore = 5, kRmsGradMore = 3;
/// The reason why a residual or a sum is not as X, or an empty string; 0: there is none.
std::string residual_refusal(const KernelCall& call, size_t residual, size_t sum);
/// Has a gradient dY2 or dX2, at `more` or behind it?
bool has_more(const KernelCall& call, size_t more);

/// X of a Group- or InstanceNormalization as (batch · groups, channels of a group, plane).
struct Groups {
  int64_t batch = 0, channels = 0, groups = 1, plane = 1;
  double epsilon = 0;
  int64_t per_group() const { return channels / groups; }
  int64_t count() const { return channels == 0 ? 0 : batch * groups; }
};
/// X is input `input`; no attribute num_groups means a group for each channel. Throws Error(kModel)
/// if they do not fit.
Groups plan_groups(const KernelCall& call, size_t input);
/// The reason why the call has no kernel, or an empty string.
std::string plan_group_norm(const KernelCall& call, Groups& plan);
std::string plan_group_norm_grad(const KernelCall& call, Groups& plan);
std::string plan_rms_norm_grad(const KernelCall& call, Lines& lines);
std::string plan_layer_norm_grad(const KernelCall& call, Lines& lines);
/// Checks what all of these ask of dY, X and dX; the reason why not, or empty.
std::string grad_refusal(const KernelCall& call);
/// Checks dY2 and dX2 at `more` and behind it; the reason why not, or empty.
std::string more_refusal(const KernelCall& call, size_t more);

/// The reason why an operand has not the type of operand `like`, or an empty string; throws
/// Error(kModel) if it has not its size.
std::string check_alike(const KernelCall& call, size_t index, size_t like);
/// Throws Error(kModel) unless input `index` is present and has `size` elements.
void require_size(const KernelCall& call, size_t index, int64_t size);
/// The reason why a present operand is no float; else empty. One input and one output may be other
/// than that.
std::string float_refusal(const KernelCall& call, size_t other_input = SIZE_MAX,
                          size_t other_output = SIZE_MAX);

/// dY, or the sum of its two parts rounded to T.
template <class T>
struct GradOperand {
  const T *dy, *more;
  GradOperand(const KernelBuffers& buffers, size_t more_at)
      : dy(buffers.in<T>(0)), more(buffers.in<T>(more_at)) {}
  Math<T> operator[](int64_t i) const {
    return more == nullptr ? load(dy[i]) : load(store<T>(load(dy[i]) + load(more[i])));
  }
};

/// dX, to which a dX2 is added before it is rounded to T.
template <class T>
struct GradResult {
  T* dx;
  const T* more;
  GradResult(const KernelBuffers& buffers, size_t more_at)
      : dx(buffers.out<T>(0)), more(buffers.in<T>(more_at)) {}
  void write(int64_t i, double value) const {
    if (more != nullptr) value += load(more[i]);
    dx[i] = store<T>(static_cast<Math<T>>(value));
  }
};

/// Mean and population variance, in double (two passes).
struct Moments {
  double mean = 0, variance = 0;
};

/// Of `count` elements that `at(i)` gives in math precision.
template <class At>
Moments moments_of(int64_t count, At&& at) {
  Moments moments;
  for (int64_t i = 0; i < count; ++i) moments.mean += at(i);
  moments.mean /= static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    const double distance = at(i) - moments.mean;
    moments.variance += distance * distance;
  }
  moments.variance /= static_cast<double>(count);
  return moments;
}

}  // namespace halfnote::cpu
