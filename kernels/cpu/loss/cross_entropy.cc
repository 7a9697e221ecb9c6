// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss. The losses of all positions are kept in
// double and added in order, so that the sum is the same on any number of threads. A mean over no
// position is 0/0, NaN.
#include <cmath>

#include "kernels/cpu/loss/plan.h"

namespace halfnote::cpu {

void write_loss(const LossPlan& plan, const KernelBuffers& buffers, DType type,
                const double* losses, double divisor) {
  if (plan.reduction == LossPlan::Reduction::kNone) {
    store_reals(losses, plan.lines.count, type, buffers.outputs[0], 0);
    return;
  }
  double sum = 0;
  for (int64_t i = 0; i < plan.lines.count; ++i) sum += losses[i];
  write_real(sum / divisor, buffers.outputs[0], type, 0);
}

void check_loss_output(const KernelCall& call, const LossPlan& plan) {
  if (!call.has_output(0)) throw model_error(call, "the loss is missing");
  const Shape expected = loss_shape(plan, call.inputs[1].shape);
  if (call.outputs[0].shape == expected) return;
  throw model_error(call, "loss of the wrong shape")
      .expected(to_string(expected), to_string(call.outputs[0].shape));
}

LossForwardPlan plan_loss_forward(const KernelCall& call, WorkspacePlan& workspace) {
  if (!call.has_input(0)) throw model_error(call, "the scores are missing");
  LossForwardPlan plan;
  plan.loss = plan_loss(call, call.inputs[0].shape, 1, 2, workspace);
  check_loss_output(call, plan.loss);
  plan.losses_offset = workspace.add_elements<double>(plan.loss.lines.count);
  return plan;
}

std::string loss_forward_refusal(const KernelCall& call, const LossPlan& plan) {
  if (std::string why = loss_type_refusal(call, plan); !why.empty()) return why;
  const bool differ = call.has_output(1) && call.outputs[1].dtype != call.inputs[0].dtype;
  return differ ? "log_prob of another type than the scores" : "";
}

namespace {

/// Calls `body(position)`, which gives the log-probability of the label, for each position that
/// counts or for all.
template <class Body>
void for_positions(const LossPlan& plan, int threads, Body&& body) {
  parallel_blocks(plan.lines.count, plan.lines.grain(), threads, [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) body(position);
  });
}

template <class T>
Prepared cross_entropy_kernel(const KernelCall& call, const LossPlan& plan, size_t losses_offset,
                              size_t workspace) {
  const bool with_log_prob = call.has_output(1);
  const auto body = [=, type = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const double divisor = plan.prepare_weights(buffers);
    const auto* weights = part<double>(buffers, plan.weights_offset);
    auto* losses = part<double>(buffers, losses_offset);
    for_positions(plan, threads, [&](int64_t position) {
      const int64_t start = plan.lines.start(position), stride = plan.lines.stride;
      const T* x = buffers.in<T>(0) + start;
      const LogSumExp log_sum = log_sum_exp(x, plan.lines);
      const int64_t label = plan.label_at(buffers, position);
      losses[position] =
          plan.is_ignored(label) ? 0 : weights[position] * -log_sum.of(load(x[label * stride]));
      if (!with_log_prob) return;
      T* log_prob = buffers.out<T>(1) + start;
      for (int64_t i = 0; i < plan.lines.length; ++i) {
        log_prob[i * stride] = store<T>(static_cast<Math<T>>(log_sum.of(load(x[i * stride]))));
      }
    });
    write_loss(plan, buffers, type, losses, divisor);
  };
  return make_kernel(body, workspace);
}

Prepared prepare_cross_entropy(const KernelCall& call) {
  WorkspacePlan workspace;
  const LossForwardPlan planned = plan_loss_forward(call, workspace);
  if (std::string why = loss_forward_refusal(call, planned.loss); !why.empty())
    return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return cross_entropy_kernel<T>(call, planned.loss, planned.losses_offset, workspace.size());
  });
}

Prepared prepare_log_likelihood(const KernelCall& call) {
  WorkspacePlan workspace;
  const LossForwardPlan planned = plan_loss_forward(call, workspace);
  if (std::string why = loss_type_refusal(call, planned.loss); !why.empty())
    return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [plan = planned.loss, offset = planned.losses_offset,
                       type = call.outputs[0].dtype,
                       threads = call.threads](const KernelBuffers& buffers) {
      const double divisor = plan.prepare_weights(buffers);
      const auto* weights = part<double>(buffers, plan.weights_offset);
      auto* losses = part<double>(buffers, offset);
      for_positions(plan, threads, [&](int64_t position) {
        const int64_t label = plan.label_at(buffers, position);
        losses[position] = 0;
        if (plan.is_ignored(label)) return;
        const int64_t index = plan.lines.start(position) + label * plan.lines.stride;
        losses[position] = -weights[position] * load(buffers.in<T>(0)[index]);
      });
      write_loss(plan, buffers, type, losses, divisor);
    };
    return make_kernel(body, workspace.size());
  });
}

}  // namespace

std::vector<KernelRow> cross_entropy_rows() {
  return {
      {"", "NegativeLogLikelihoodLoss", "reference", prepare_log_likelihood},
      {"", "SoftmaxCrossEntropyLoss", "reference", prepare_cross_entropy},
  };
}

}  // namespace halfnote::cpu
