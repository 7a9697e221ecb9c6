// The gradients of the cross-entropy losses. With w the weight of a position and D what the loss
// was divided by:
//   SoftmaxCrossEntropyLossGrad:   dX[c] = (exp(log_prob[c]) − [c = label])·w·dL/D
//   NegativeLogLikelihoodLossGrad: dX[c] = −[c = label]·w·dL/D
// and 0 throughout where the label is ignored.
#include <cmath>

#include "kernels/cpu/loss/plan.h"

namespace halfnote::cpu {

double Upstream::at(const LossPlan& plan, const KernelBuffers& buffers, double divisor,
                    int64_t position) const {
  const double dl = read_real(buffers.inputs[input], type, per_position ? position : 0);
  return part<double>(buffers, plan.weights_offset)[position] * dl / divisor;
}

Upstream plan_upstream(const KernelCall& call, const LossPlan& plan, size_t input,
                       size_t gradient) {
  if (!call.has_input(input) || !call.has_output(gradient))
    throw model_error(call, "dL or dX is missing");
  const bool per_position = plan.reduction == LossPlan::Reduction::kNone;
  require_size(call, input, per_position ? plan.lines.count : 1);
  return {input, call.inputs[input].dtype, per_position};
}

LossPlan plan_cross_entropy_grad(const KernelCall& call, WorkspacePlan& workspace) {
  if (!call.has_input(1)) throw model_error(call, "the log-probabilities are missing");
  LossPlan plan = plan_loss(call, call.inputs[1].shape, 2, 3, workspace);
  plan_upstream(call, plan);
  return plan;
}

std::string cross_entropy_grad_refusal(const KernelCall& call, const LossPlan& plan) {
  if (std::string why = loss_type_refusal(call, plan); !why.empty()) return why;
  if (!is_real(call.inputs[0].dtype)) return "dL is no float";
  const bool differ = call.outputs[0].dtype != call.inputs[1].dtype;
  return differ ? "log_prob and dX of different types" : "";
}

namespace {

/// `fill(buffers, position, label, factor)` writes the line of a position that counts; others
/// become 0.
template <class T, class Fill>
Prepared gradient_kernel(const KernelCall& call, const LossPlan& plan, size_t workspace,
                         Fill fill) {
  const auto body = [=, upstream = plan_upstream(call, plan),
                     threads = call.threads](const KernelBuffers& buffers) {
    const double divisor = plan.prepare_weights(buffers);
    parallel_blocks(plan.lines.count, plan.lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t position = begin; position < end; ++position) {
        T* dx = buffers.out<T>(0) + plan.lines.start(position);
        const int64_t label = plan.label_at(buffers, position);
        if (plan.is_ignored(label)) {
          for (int64_t i = 0; i < plan.lines.length; ++i) dx[i * plan.lines.stride] = store<T>(0);
        } else {
          fill(buffers, position, label, upstream.at(plan, buffers, divisor, position));
        }
      }
    });
  };
  return make_kernel(body, workspace);
}

Prepared prepare_cross_entropy(const KernelCall& call) {
  WorkspacePlan workspace;
  const LossPlan plan = plan_cross_entropy_grad(call, workspace);
  if (std::string why = cross_entropy_grad_refusal(call, plan); !why.empty())
    return Prepared::no(why);
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    const auto fill = [plan](const KernelBuffers& buffers, int64_t position, int64_t label,
                             double factor) {
      const int64_t start = plan.lines.start(position), stride = plan.lines.stride;
      const T* log_prob = buffers.in<T>(1) + start;
      T* dx = buffers.out<T>(0) + start;
      for (int64_t i = 0; i < plan.lines.length; ++i) {
        const double probability = std::exp(load(log_prob[i * stride]));
        const double value = (i == label ? probability - 1 : probability) * factor;
        dx[i * stride] = store<T>(static_cast<Math<T>>(value));
      }
    };
    return gradient_kernel<T>(call, plan, workspace.size(), fill);
  });
}

Prepared prepare_log_likelihood(const KernelCall& call) {
  if (!call.has_output(0)) throw model_error(call, "dX is missing");
  WorkspacePlan workspace;
  const LossPlan plan = plan_loss(call, call.outputs[0].shape, 1, 2, workspace);
  plan_upstream(call, plan);
  if (std::string why = loss_type_refusal(call, plan); !why.empty()) return Prepared::no(why);
  if (!is_real(call.inputs[0].dtype)) return Prepared::no("dL is no float");
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    const auto fill = [plan](const KernelBuffers& buffers, int64_t position, int64_t label,
                             double factor) {
      T* dx = buffers.out<T>(0) + plan.lines.start(position);
      for (int64_t i = 0; i < plan.lines.length; ++i) {
        dx[i * plan.lines.stride] = store<T>(static_cast<Math<T>>(i == label ? -factor : 0));
      }
    };
    return gradient_kernel<T>(call, plan, workspace.size(), fill);
  });
}

}  // namespace

std::vector<KernelRow> loss_grad_rows() {
  return {
      {"ai.halfnote", "NegativeLogLikelihoodLossGrad", "reference", prepare_log_likelihood},
      {"ai.halfnote", "SoftmaxCrossEntropyLossGrad", "reference", prepare_cross_entropy},
  };
}

}  // namespace halfnote::cpu
