// BatchNormalization: ONNX's (inference, and training with running statistics) and that of
// ai.halfnote with its gradient. A parallel block is one channel; statistics are summed in double.
// Parameters and statistics may be of another float type than X.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

/// Calls `body(i, index)` for every element of channel c, in order.
template <class Body>
void for_channel(const Channels& plan, int64_t c, Body&& body) {
  int64_t i = 0;
  for (int64_t n = 0; n < plan.images; ++n) {
    const int64_t first = (n * plan.channels + c) * plan.plane;
    for (int64_t j = 0; j < plan.plane; ++j) body(i++, first + j);
  }
}

template <class T>
Moments channel_moments(const Channels& plan, int64_t c, const T* x) {
  const auto count = static_cast<double>(plan.per_channel());
  Moments moments;
  for_channel(plan, c, [&](int64_t, int64_t i) { moments.mean += load(x[i]); });
  moments.mean /= count;
  for_channel(plan, c, [&](int64_t, int64_t i) {
    const double distance = load(x[i]) - moments.mean;
    moments.variance += distance * distance;
  });
  moments.variance /= count;
  return moments;
}

/// The four parameter inputs 1 to 4 and the statistics outputs, by element.
struct Parameters {
  std::vector<DType> inputs, outputs;
  double read(const KernelBuffers& buffers, size_t input, int64_t c) const {
    return read_real(buffers.inputs[input], inputs[input], c);
  }
  void write(const KernelBuffers& buffers, size_t output, int64_t c, double value) const {
    if (output >= outputs.size() || outputs[output] == DType::kUndefined) return;
    write_real(value, buffers.outputs[output], outputs[output], c);
  }
};

Parameters plan_parameters(const KernelCall& call) {
  Parameters parameters;
  for (const Operand& operand : call.inputs) parameters.inputs.push_back(operand.dtype);
  for (const Operand& operand : call.outputs) parameters.outputs.push_back(operand.dtype);
  return parameters;
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const BatchNormPlan& norm) {
  using M = Math<T>;
  // An f32 result is rounded once: a ReLU behind it should not see the rounding of ours.
  using Wide = std::conditional_t<std::is_same_v<T, float>, double, M>;
  const auto body = [=, plan = norm.channels, parameters = plan_parameters(call),
                     threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(plan.channels, 1, threads, [&](int64_t c, int64_t) {
      const T* x = buffers.in<T>(0);
      Moments moments{parameters.read(buffers, 3, c), parameters.read(buffers, 4, c)};
      if (norm.of_batch) {
        const Moments batch = channel_moments(plan, c, x);
        const auto blend = [&](double running, double now) {
          return running * norm.momentum + now * (1 - norm.momentum);
        };
        parameters.write(buffers, 1, c, blend(moments.mean, batch.mean));
        parameters.write(buffers, 2, c, blend(moments.variance, batch.variance));
        moments = batch;
      }
      const double inv_std = 1 / std::sqrt(moments.variance + norm.epsilon);
      if (norm.saves) {
        parameters.write(buffers, 3, c, moments.mean);
        parameters.write(buffers, 4, c, inv_std);
      }
      const auto mean = static_cast<Wide>(moments.mean);
      const auto factor = static_cast<Wide>(parameters.read(buffers, 1, c) * inv_std);
      const auto shift = static_cast<Wide>(parameters.read(buffers, 2, c));
      T* y = buffers.out<T>(0);
      for_channel(plan, c, [&](int64_t, int64_t i) {
        y[i] = store<T>(static_cast<M>((static_cast<Wide>(load(x[i])) - mean) * factor + shift));
      });
    });
  };
  return make_kernel(body, 0,
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

Prepared prepare_forward(const KernelCall& call) {
  BatchNormPlan plan;
  if (std::string why = plan_batch_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return forward_kernel<T>(call, plan); });
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const Channels& plan) {
  using M = Math<T>;
  const auto body = [=, parameters = plan_parameters(call),
                     threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(plan.channels, 1, threads, [&](int64_t c, int64_t) {
      const T* dy = buffers.in<T>(0);
      const T* x = buffers.in<T>(1);
      const double mean = parameters.read(buffers, 3, c), inv_std = parameters.read(buffers, 4, c);
      double sum = 0, product = 0;
      for_channel(plan, c, [&](int64_t, int64_t i) {
        sum += load(dy[i]);
        product += load(dy[i]) * ((load(x[i]) - mean) * inv_std);
      });
      parameters.write(buffers, 1, c, product);
      parameters.write(buffers, 2, c, sum);
      if (!buffers.outputs[0]) return;
      const auto count = static_cast<double>(plan.per_channel());
      const double factor = parameters.read(buffers, 2, c) * inv_std;
      const double slope = product / count * inv_std, offset = sum / count;
      T* dx = buffers.out<T>(0);
      for_channel(plan, c, [&](int64_t, int64_t i) {
        const double value = factor * (load(dy[i]) - offset - (load(x[i]) - mean) * slope);
        dx[i] = store<T>(static_cast<M>(value));
      });
    });
  };
  return make_kernel(body, 0,
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

Prepared prepare_gradient(const KernelCall& call) {
  Channels plan;
  if (std::string why = plan_batch_norm_grad(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return gradient_kernel<T>(call, plan); });
}

}  // namespace

Channels plan_channels(const KernelCall& call, size_t input) {
  if (!call.has_input(input)) throw model_error(call, "X is missing");
  const Shape& x = call.inputs[input].shape;
  if (x.empty()) throw model_error(call, "X is a scalar");
  Channels plan{x[0]};
  if (x.size() > 1) plan.channels = x[1];
  if (x.size() > 2) plan.plane = element_count(std::span<const int64_t>(x).subspan(2));
  return plan;
}

bool in_inference(const KernelCall& call) {
  return call.domain.empty() && attributes_of(call).get_int("training_mode", 0) == 0;
}

std::string plan_batch_norm(const KernelCall& call, BatchNormPlan& plan) {
  const bool own = !call.domain.empty();
  const bool training = !in_inference(call);
  if (!training && call.has_output(1)) return "running statistics without training_mode";
  plan.of_batch = training;
  plan.saves = own;
  plan.epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  plan.momentum = attributes_of(call).get_float("momentum", 0.9f);
  plan.channels = plan_channels(call, 0);
  for (size_t i = 1; i <= 4; ++i) require_size(call, i, plan.channels.channels);
  if (std::string why = float_refusal(call); !why.empty()) return why;
  if (!call.has_output(0)) throw model_error(call, "Y is missing");
  return call.outputs[0].dtype == call.inputs[0].dtype ? "" : "X and Y of different types";
}

std::string plan_batch_norm_grad(const KernelCall& call, Channels& plan) {
  plan = plan_channels(call, 1);
  require_size(call, 0, call.inputs[1].size());
  for (size_t i = 2; i <= 4; ++i) require_size(call, i, plan.channels);
  if (std::string why = float_refusal(call); !why.empty()) return why;
  const bool same = call.inputs[0].dtype == call.inputs[1].dtype &&
                    (!call.has_output(0) || call.outputs[0].dtype == call.inputs[0].dtype);
  return same ? "" : "dY, X and dX of different types";
}

std::vector<KernelRow> batch_norm_rows() {
  return {
      {"", "BatchNormalization", "reference", prepare_forward},
      {"ai.halfnote", "BatchNormalization", "reference", prepare_forward},
      {"ai.halfnote", "BatchNormalizationGrad", "reference", prepare_gradient},
  };
}

}  // namespace halfnote::cpu
