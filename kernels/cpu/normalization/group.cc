// InstanceNormalization and GroupNormalization (op-set 21: scale and bias for each channel). The
// channels of a group and all their spatial positions lie together; an instance is a group of one
// channel.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

template <class T>
Prepared group_kernel(const KernelCall& call, int64_t groups, int64_t channels, int64_t plane) {
  using M = Math<T>;
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  const int64_t per_group = channels / groups;
  const auto body = [=, scale = call.inputs[1].dtype, bias = call.inputs[2].dtype,
                     count = call.inputs[0].shape[0] * groups,
                     threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(count, 1, threads, [&](int64_t group, int64_t) {
      const int64_t first = group * per_group * plane;
      const T* x = buffers.in<T>(0) + first;
      T* y = buffers.out<T>(0) + first;
      const Moments moments = moments_of(per_group * plane, [x](int64_t i) { return load(x[i]); });
      const double inv_std = 1 / std::sqrt(moments.variance + epsilon);
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

Prepared prepare(const KernelCall& call, int64_t groups) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  const Shape& x = call.inputs[0].shape;
  if (x.size() < 2) throw model_error(call, "X has no channels").expected("rank ≥ 2", to_string(x));
  const int64_t channels = x[1];
  if (groups == 0) groups = std::max<int64_t>(1, channels);  // an instance for each channel
  if (groups < 1 || channels % groups != 0) {
    throw model_error(call, "num_groups does not divide the channels")
        .expected("a divisor of " + std::to_string(channels), std::to_string(groups));
  }
  require_size(call, 1, channels);
  require_size(call, 2, channels);
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  const int64_t plane = element_count(std::span<const int64_t>(x).subspan(2));
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return group_kernel<T>(call, groups, channels, plane); });
}

Prepared prepare_instance(const KernelCall& call) { return prepare(call, 0); }

Prepared prepare_group(const KernelCall& call) {
  const int64_t groups = attributes_of(call).get_int("num_groups", 0);
  if (groups < 1) throw model_error(call, "num_groups is missing or not positive");
  return prepare(call, groups);
}

}  // namespace

std::vector<KernelRow> group_norm_rows() {
  return {
      {"", "GroupNormalization", "reference", prepare_group},
      {"", "InstanceNormalization", "reference", prepare_instance},
  };
}

}  // namespace halfnote::cpu
