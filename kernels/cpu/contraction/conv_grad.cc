// The gradients of Conv for its input and its weights.
#include "kernels/cpu/contraction/conv_rows.h"
#include "kernels/cpu/contraction/parts.h"

namespace halfnote::cpu {

namespace {

std::string refusal(const KernelCall& call, const Shape& shape) {
  if (std::string why = conv_rank_refusal(shape); !why.empty()) return why;
  return conv_type_refusal(call);
}

Prepared prepare_grad_input(const KernelCall& call) {
  if (call.has_input(0)) {
    if (std::string why = refusal(call, call.inputs[0].shape); !why.empty())
      return Prepared::no(why);
  }
  const ConvPlan plan = plan_conv_grad_input(call);
  return for_math_type(call.inputs[0].dtype,
                       [&]<class M>() { return input_gradient_kernel<M>(call, plan); });
}

/// A block of the parallel loop is one (filter, channel) pair: all its kernel elements, summed over
/// the batch.
template <class M>
Prepared weight_kernel(const KernelCall& call, const ConvPlan& plan) {
  WorkspacePlan workspace;
  const DType type = call.inputs[0].dtype;
  const size_t dy_room = workspace.add_elements<M>(room_for_reals<M>(call.inputs[0]));
  const size_t x_room = workspace.add_elements<M>(room_for_reals<M>(call.inputs[1]));
  const auto body = [=, out = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const M* dy =
        all_reals(buffers.inputs[0], type, plan.y_size(), part<M>(buffers, dy_room), threads);
    const M* x =
        all_reals(buffers.inputs[1], type, plan.x_size(), part<M>(buffers, x_room), threads);
    const int64_t channels = plan.group_channels();
    parallel_blocks(plan.filters * channels, 1, threads, [&](int64_t pair, int64_t) {
      const int64_t m = pair / channels;
      const int64_t c = m / plan.group_filters() * channels + pair % channels;
      for (int64_t k = 0; k < plan.kernel_size(); ++k) {
        const ConvPlan::Dims at{k / plan.kernel[2] / plan.kernel[1],
                                k / plan.kernel[2] % plan.kernel[1], k % plan.kernel[2]};
        double sum = 0;
        for (int64_t n = 0; n < plan.batch; ++n) {
          sum += weight_gradient(plan, dy + (n * plan.filters + m) * plan.out_size(),
                                 x + (n * plan.channels + c) * plan.in_size(), at);
        }
        write_real(static_cast<M>(sum), buffers.outputs[0], out, pair * plan.kernel_size() + k);
      }
    });
  };
  return make_kernel(body, workspace.size());
}

Prepared prepare_grad_weight(const KernelCall& call) {
  if (call.has_input(0)) {
    if (std::string why = refusal(call, call.inputs[0].shape); !why.empty())
      return Prepared::no(why);
  }
  const ConvPlan plan = plan_conv_grad_weight(call);
  return for_math_type(call.inputs[0].dtype,
                       [&]<class M>() { return weight_kernel<M>(call, plan); });
}

}  // namespace

std::vector<KernelRow> conv_grad_rows() {
  return {
      {"ai.halfnote", "ConvGradInput", "reference", prepare_grad_input},
      {"ai.halfnote", "ConvGradWeight", "reference", prepare_grad_weight},
  };
}

}  // namespace halfnote::cpu
