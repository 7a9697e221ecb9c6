// What the cross-entropy losses and their gradients share: positions, labels, class weights, the
// reduction.
#pragma once

#include <cmath>
#include <limits>
#include <optional>

#include "kernels/cpu/loss/rank.h"
#include "kernels/cpu/normalization/parts.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

std::vector<KernelRow> cross_entropy_rows();  // cross_entropy.cc: the two losses
std::vector<KernelRow> loss_grad_rows();      // loss_grad.cc: their gradients
std::vector<KernelRow> loss_and_grad_rows();  // loss_and_grad.cc: loss and gradient at once
std::vector<KernelRow> count_rows();          // count.cc: labels with the highest scores

/// The logarithm of Σ exp(x) over one line: the largest x, and the logarithm of Σ exp(x − it).
/// Where a mask has taken a whole line to -FLT_MAX, their sum would have lost the second, in f64
/// too.
struct LogSumExp {
  double most, rest;

  constexpr double sum() const { return most + rest; }
  /// The log-probability of a score.
  constexpr double of(double score) const { return (score - most) - rest; }
};

template <class T>
LogSumExp log_sum_exp(const T* x, const Lines& lines) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  const auto score = [&](int64_t i) { return static_cast<double>(load(x[i * lines.stride])); };
  for (int64_t i = 0; i < lines.length; ++i) most = std::max(most, score(i));
  for (int64_t i = 0; i < lines.length; ++i) sum += std::exp(static_cast<Math<T>>(score(i) - most));
  return {most, std::log(sum)};
}

struct LossPlan {
  enum class Reduction { kNone, kSum, kMean };

  Lines lines;  // along the classes (axis 1); a line is a position with one label
  Reduction reduction = Reduction::kMean;
  std::optional<int64_t> ignored;  // the label that does not count
  size_t label_input = 0, weight_input = 0;
  DType label = DType::kUndefined, weight = DType::kUndefined;  // weight undefined: all 1
  size_t weights_offset =
      0;  // workspace: the weight of each position, 0 where the label is ignored

  int64_t label_at(const KernelBuffers& buffers, int64_t position) const {
    return label == DType::kI32 ? buffers.in<int32_t>(label_input)[position]
                                : buffers.in<int64_t>(label_input)[position];
  }
  bool is_ignored(int64_t label_value) const { return ignored && *ignored == label_value; }

  /// Fills the weights of all positions and returns what a loss is divided by (1, but for the
  /// mean). Throws Error(kData) for a label outside the classes.
  double prepare_weights(const KernelBuffers& buffers) const;
};

/// A label that is none of the classes.
struct BadLabel {
  int64_t label = 0, position = 0;  // among all labels
  int64_t classes = 0;
  std::optional<int64_t> ignored;  // the label that would not count
};
/// Error(kData) about it.
Error bad_label(const BadLabel& bad);

/// `scores` is (N, C, d…); labels have its shape without C. Throws Error(kModel) if shapes or
/// attributes do not fit.
LossPlan plan_loss(const KernelCall& call, const Shape& scores, size_t label_input,
                   size_t weight_input, WorkspacePlan& workspace);
/// The reason why types are not supported; else empty.
std::string loss_type_refusal(const KernelCall& call, const LossPlan& plan);
/// The shape of the loss.
Shape loss_shape(const LossPlan& plan, const Shape& labels);
/// Throws Error(kModel) if output 0, the loss, is missing or has another shape.
void check_loss_output(const KernelCall& call, const LossPlan& plan);
/// Adds or divides the losses of all positions (already weighted) and writes output 0.
void write_loss(const LossPlan& plan, const KernelBuffers& buffers, DType type,
                const double* losses, double divisor);

/// The operands of one of the two losses, planned.
struct LossForwardPlan {
  LossPlan loss;
  size_t losses_offset = 0;  // workspace: the loss of each position
};

/// Throws Error(kModel) if shapes or attributes do not fit.
LossForwardPlan plan_loss_forward(const KernelCall& call, WorkspacePlan& workspace);
/// The reason why its types are not supported; else empty.
std::string loss_forward_refusal(const KernelCall& call, const LossPlan& plan);

/// The operands of SoftmaxCrossEntropyLossGrad. Throws Error(kModel) if shapes or attributes do not
/// fit.
LossPlan plan_cross_entropy_grad(const KernelCall& call, WorkspacePlan& workspace);
/// The reason why its types are not supported; else empty.
std::string cross_entropy_grad_refusal(const KernelCall& call, const LossPlan& plan);

/// w·dL/D of a position: the factor of a gradient.
struct Upstream {
  size_t input = 0;  // dL
  DType type = DType::kUndefined;
  bool per_position = false;

  double at(const LossPlan& plan, const KernelBuffers& buffers, double divisor,
            int64_t position) const;
};

/// Throws Error(kModel) if dL does not fit the plan, or the gradient, output `gradient`, is
/// missing.
Upstream plan_upstream(const KernelCall& call, const LossPlan& plan, size_t input = 0,
                       size_t gradient = 0);

/// The operands of SoftmaxCrossEntropyLossWithGradient, planned.
struct LossAndGradPlan {
  LossPlan loss;
  Upstream upstream;
  size_t losses_offset = 0;  // workspace: the loss of each position
};

/// Throws Error(kModel) if shapes or attributes do not fit.
LossAndGradPlan plan_loss_and_grad(const KernelCall& call, WorkspacePlan& workspace);
/// The reason why its types are not supported; else empty.
std::string loss_and_grad_refusal(const KernelCall& call, const LossPlan& plan);

/// The operands of CountCorrect, planned.
struct CountPlan {
  LossPlan loss;
  bool gives_correct = false, gives_counted = false, gives_among = false;

  /// From so many scores above that of the label on it does not matter how many there are.
  int64_t most() const { return gives_among ? kTopFive : 1; }
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that do
/// not fit.
std::string plan_count(const KernelCall& call, CountPlan& plan);

}  // namespace halfnote::cpu
