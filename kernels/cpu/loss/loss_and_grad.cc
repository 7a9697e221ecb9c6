// SoftmaxCrossEntropyLossWithGradient: the loss and, from the same scores, its gradient. The
// numbers are those of SoftmaxCrossEntropyLoss and SoftmaxCrossEntropyLossGrad in math precision,
// log_prob rounded to it in between; the gradient is rounded once more, to its own type. Padding
// behind the classes gets the gradient 0.
#include <cmath>

#include "kernels/cpu/loss/plan.h"

namespace halfnote::cpu {

LossAndGradPlan plan_loss_and_grad(const KernelCall& call, WorkspacePlan& workspace) {
  if (!call.has_input(0)) throw model_error(call, "the scores are missing");
  LossAndGradPlan plan;
  plan.loss = plan_loss(call, call.inputs[0].shape, 1, 3, workspace);
  check_loss_output(call, plan.loss);
  plan.upstream = plan_upstream(call, plan.loss, 2, 1);
  if (call.outputs[1].shape != call.inputs[0].shape) {
    throw model_error(call, "gradient of the wrong shape")
        .expected(to_string(call.inputs[0].shape), to_string(call.outputs[1].shape));
  }
  plan.losses_offset = workspace.add_elements<double>(plan.loss.lines.count);
  return plan;
}

std::string loss_and_grad_refusal(const KernelCall& call, const LossPlan& plan) {
  if (std::string why = loss_type_refusal(call, plan); !why.empty()) return why;
  if (!is_real(call.inputs[2].dtype)) return "dL is no float";
  return is_real(call.outputs[1].dtype) ? "" : "dX is no float";
}

namespace {

/// Writes the gradient of one line and returns the log-probability of its label.
template <class T>
double gradient_line(const T* x, const Lines& lines, int64_t label, double factor, DType dtype,
                     std::byte* dx, int64_t start) {
  const LogSumExp log_sum = log_sum_exp(x, lines);
  for (int64_t i = 0; i < lines.length; ++i) {
    const auto log_prob = static_cast<Math<T>>(log_sum.of(load(x[i * lines.stride])));
    const double probability = std::exp(log_prob);
    const auto value = static_cast<Math<T>>((i == label ? probability - 1 : probability) * factor);
    write_real(static_cast<double>(value), dx, dtype, start + i * lines.stride);
  }
  return log_sum.of(load(x[label * lines.stride]));
}

template <class T>
Prepared reference_kernel(const KernelCall& call, const LossAndGradPlan& plan, size_t workspace) {
  const auto body = [=, type = call.outputs[0].dtype, gradient = call.outputs[1].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const LossPlan& loss = plan.loss;
    const Lines& lines = loss.lines;
    const double divisor = loss.prepare_weights(buffers);
    const auto* weights = part<double>(buffers, loss.weights_offset);
    auto* losses = part<double>(buffers, plan.losses_offset);
    parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t position = begin; position < end; ++position) {
        const int64_t start = lines.start(position), label = loss.label_at(buffers, position);
        const bool ignored = loss.is_ignored(label);
        losses[position] = 0;
        for (int64_t i = ignored ? 0 : lines.length; i < lines.length + lines.padding; ++i)
          write_real(0.0, buffers.outputs[1], gradient, start + i * lines.stride);
        if (ignored) continue;
        const T* x = buffers.in<T>(0) + start;
        const double log_prob =
            gradient_line(x, lines, label, plan.upstream.at(loss, buffers, divisor, position),
                          gradient, buffers.outputs[1], start);
        losses[position] = weights[position] * -log_prob;
      }
    });
    write_loss(loss, buffers, type, losses, divisor);
  };
  return make_kernel(body, workspace);
}

Prepared prepare(const KernelCall& call) {
  WorkspacePlan workspace;
  const LossAndGradPlan plan = plan_loss_and_grad(call, workspace);
  if (std::string why = loss_and_grad_refusal(call, plan.loss); !why.empty())
    return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return reference_kernel<T>(call, plan, workspace.size());
  });
}

}  // namespace

std::vector<KernelRow> loss_and_grad_rows() {
  return {{"ai.halfnote", "SoftmaxCrossEntropyLossWithGradient", "reference", prepare}};
}

}  // namespace halfnote::cpu
