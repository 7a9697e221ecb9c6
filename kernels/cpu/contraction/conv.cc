// Conv and ConvTranspose, one row of the output at a time.
#include "kernels/cpu/contraction/conv_loops.h"
#include "kernels/cpu/contraction/conv_rows.h"
#include "kernels/cpu/contraction/parts.h"

namespace halfnote::cpu {

namespace {

template <class M>
Prepared conv_kernel(const KernelCall& call, const ConvPlan& plan) {
  return row_kernel<M>(call, plan, plan.filters, plan.out,
                       [plan](const M* x, const M* w, int64_t n, int64_t m, int64_t d, int64_t h,
                              int64_t column, int64_t count, M* sums) {
                         const int64_t channels = plan.group_channels();
                         const int64_t first = m / plan.group_filters() * channels;
                         for (int64_t c = 0; c < channels; ++c) {
                           add_channel(plan, x + (n * plan.channels + first + c) * plan.in_size(),
                                       w + (m * channels + c) * plan.kernel_size(), d, h, column,
                                       count, sums);
                         }
                       });
}

Prepared prepare_conv(const KernelCall& call) {
  if (call.has_input(0)) {
    if (std::string why = conv_rank_refusal(call.inputs[0].shape); !why.empty()) {
      return Prepared::no(why);
    }
  }
  const ConvPlan plan = plan_conv(call);
  if (std::string why = conv_type_refusal(call); !why.empty()) return Prepared::no(why);
  return for_math_type(call.inputs[0].dtype, [&]<class M>() { return conv_kernel<M>(call, plan); });
}

Prepared prepare_conv_transpose(const KernelCall& call) {
  if (call.has_input(0)) {
    if (std::string why = conv_rank_refusal(call.inputs[0].shape); !why.empty()) {
      return Prepared::no(why);
    }
  }
  const ConvPlan plan = plan_conv_transpose(call);
  if (std::string why = conv_type_refusal(call); !why.empty()) return Prepared::no(why);
  return for_math_type(call.inputs[0].dtype,
                       [&]<class M>() { return input_gradient_kernel<M>(call, plan); });
}

}  // namespace

std::vector<KernelRow> conv_rows() {
  return {
      {"", "Conv", "reference", prepare_conv},
      {"", "ConvTranspose", "reference", prepare_conv_transpose},
  };
}

}  // namespace halfnote::cpu
