// InstanceNormalization and GroupNormalization (op-set 21: scale and bias for each channel). The
// channels of a group and all their spatial positions lie together; an instance is a group of one
// channel.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

template <class T>
Prepared group_kernel(const KernelCall& call, const Groups& plan) {
  using M = Math<T>;
  const auto body = [=, scale = call.inputs[1].dtype, bias = call.inputs[2].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const int64_t per_group = plan.per_group(), groups = plan.groups, plane = plan.plane;
    parallel_blocks(plan.count(), 1, threads, [&](int64_t group, int64_t) {
      const int64_t first = group * per_group * plane;
      const T* x = buffers.in<T>(0) + first;
      T* y = buffers.out<T>(0) + first;
      const Moments moments = moments_of(per_group * plane, [x](int64_t i) { return load(x[i]); });
      const double inv_std = 1 / std::sqrt(moments.variance + plan.epsilon);
      const auto mean = static_cast<M>(moments.mean);
      for (int64_t i = 0; i < per_group; ++i) {
        const int64_t channel = group % groups * per_group + i;
        const auto factor = static_cast<M>(read_real(buffers.inputs[1], scale, channel) * inv_std);
        const auto shift = static_cast<M>(read_real(buffers.inputs[2], bias, channel));
        for (int64_t j = i * plane; j < (i + 1) * plane; ++j) {
          y[j] = store<T>((load(x[j]) - mean) * factor + shift);
        }
      }
    });
  };
  return make_kernel(body);
}

Prepared prepare(const KernelCall& call) {
  Groups plan;
  if (std::string why = plan_group_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return group_kernel<T>(call, plan); });
}

}  // namespace

Groups plan_groups(const KernelCall& call, size_t input) {
  const Shape& x = call.inputs[input].shape;
  if (x.size() < 2) throw model_error(call, "X has no channels").expected("rank ≥ 2", to_string(x));
  Groups plan{x[0], x[1], attributes_of(call).get_int("num_groups", 0),
              element_count(std::span<const int64_t>(x).subspan(2)),
              attributes_of(call).get_float("epsilon", 1e-5f)};
  if (plan.groups == 0) plan.groups = std::max<int64_t>(1, plan.channels);
  if (plan.groups < 1 || plan.channels % plan.groups != 0) {
    throw model_error(call, "num_groups does not divide the channels")
        .expected("a divisor of " + std::to_string(plan.channels), std::to_string(plan.groups));
  }
  return plan;
}

std::string plan_group_norm(const KernelCall& call, Groups& plan) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  if (call.op == "GroupNormalization" && attributes_of(call).get_int("num_groups", 0) < 1) {
    throw model_error(call, "num_groups is missing or not positive");
  }
  plan = plan_groups(call, 0);
  require_size(call, 1, plan.channels);
  require_size(call, 2, plan.channels);
  if (std::string why = float_refusal(call); !why.empty()) return why;
  return call.outputs[0].dtype == call.inputs[0].dtype ? "" : "X and Y of different types";
}

std::vector<KernelRow> group_norm_rows() {
  return {
      {"", "GroupNormalization", "reference", prepare},
      {"", "InstanceNormalization", "reference", prepare},
  };
}

}  // namespace halfnote::cpu
