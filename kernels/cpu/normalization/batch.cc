// BatchNormalization: ONNX's (inference, and training with running statistics) and that of
// ai.halfnote with its gradient. A parallel block is one channel; statistics are summed in double.
// Parameters and statistics may be of another float type than X.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

/// Calls `body(pixel, index)` for every element of channel c, in order.
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

/// An f32 result is rounded once: a ReLU behind it should not see the rounding of ours.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, float>, double, Math<T>>;

/// What a channel's normalized elements are: (x − mean)·factor + shift.
template <class T>
struct ChannelLine {
  Wide<T> mean, factor, shift;
  Wide<T> at(T x) const { return (static_cast<Wide<T>>(load(x)) - mean) * factor + shift; }
};

template <class T>
ChannelLine<T> line_of(double mean, double inv_std, double scale, double bias) {
  return {static_cast<Wide<T>>(mean), static_cast<Wide<T>>(scale * inv_std),
          static_cast<Wide<T>>(bias)};
}

/// A statistic as it is when it is read again.
template <class T>
double as_saved(double value) {
  return std::is_same_v<T, double> ? value : static_cast<double>(static_cast<float>(value));
}

/// The line by which channel c of the residual is normalized.
template <class T>
ChannelLine<T> line_of_residual(const KernelBuffers& buffers, const Parameters& parameters,
                                int64_t c) {
  const auto read = [&](size_t part) { return parameters.read(buffers, kNormLine + part, c); };
  return line_of<T>(read(2), read(3), read(0), read(1));
}

/// The line of channel c, whose statistics are written.
template <class T>
ChannelLine<T> normalize_channel(const KernelBuffers& buffers, const BatchNormPlan& norm,
                                 const Parameters& parameters, int64_t c) {
  Moments moments{parameters.read(buffers, 3, c), parameters.read(buffers, 4, c)};
  if (norm.of_batch) {
    const Moments batch = channel_moments(norm.channels, c, buffers.in<T>(0));
    const auto blend = [&](double running, double now) {
      return running * norm.momentum + now * (1 - norm.momentum);
    };
    parameters.write(buffers, 1, c, blend(moments.mean, batch.mean));
    parameters.write(buffers, 2, c, blend(moments.variance, batch.variance));
    moments = batch;
  }
  double inv_std = 1 / std::sqrt(moments.variance + norm.epsilon);
  if (norm.saves) {
    parameters.write(buffers, 3, c, moments.mean);
    parameters.write(buffers, 4, c, inv_std);
  }
  if (norm.adds || norm.relu) {
    moments.mean = as_saved<T>(moments.mean);
    inv_std = as_saved<T>(inv_std);
  }
  return line_of<T>(moments.mean, inv_std, parameters.read(buffers, 1, c),
                    parameters.read(buffers, 2, c));
}

/// Y has all channels by now: a byte needs eight.
template <class T>
void write_signs(const Channels& plan, const T* y, uint8_t* signs, int threads) {
  const int64_t groups = plan.channels / 8;
  parallel_blocks(plan.per_channel(), 1, threads, [&](int64_t pixel, int64_t) {
    const int64_t image = pixel / plan.plane, place = pixel % plan.plane;
    for (int64_t group = 0; group < groups; ++group) {
      unsigned bits = 0;
      for (int64_t v = 0; v < 8; ++v) {
        const int64_t c = group * 8 + v;
        if (load(y[(image * plan.channels + c) * plan.plane + place]) > 0) bits |= 1u << v;
      }
      signs[pixel * groups + group] = static_cast<uint8_t>(bits);
    }
  });
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const BatchNormPlan& norm) {
  const auto body = [=, plan = norm.channels, parameters = plan_parameters(call),
                     threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(plan.channels, 1, threads, [&](int64_t c, int64_t) {
      const ChannelLine<T> line = normalize_channel<T>(buffers, norm, parameters, c);
      const T* x = buffers.in<T>(0);
      const T* residual = norm.adds ? buffers.in<T>(kNormResidual) : nullptr;
      ChannelLine<T> of_residual{0, 1, 0};
      if (norm.adds_line) of_residual = line_of_residual<T>(buffers, parameters, c);
      T* y = buffers.out<T>(0);
      if (y == nullptr) return;
      for_channel(plan, c, [&](int64_t, int64_t i) {
        Wide<T> value = line.at(x[i]);
        if (residual != nullptr) value += of_residual.at(residual[i]);
        if (norm.relu && value < 0) value = 0;
        y[i] = store<T>(static_cast<Math<T>>(value));
      });
    });
    if (norm.keeps_signs)
      write_signs(plan, buffers.out<T>(0), buffers.out<uint8_t>(kNormSigns), threads);
  };
  return make_kernel(body, 0, batch_norm_in_place);
}

Prepared prepare_forward(const KernelCall& call) {
  BatchNormPlan plan;
  if (std::string why = plan_batch_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return forward_kernel<T>(call, plan); });
}

/// dY of an element as it counts: the sum of its parts, rounded, where Y is above 0.
template <class T>
struct Incoming {
  const T *dy, *addend, *y, *x;
  const uint8_t* signs;
  int64_t channels, c;
  NormMask mask;
  ChannelLine<T> line;

  /// Of element i, which belongs to such a pixel.
  T at(int64_t pixel, int64_t i) const {
    T g = dy[i];
    if (addend != nullptr) g = store<T>(load(dy[i]) + load(addend[i]));
    return lets_through(pixel, i) ? g : store<T>(0);
  }

 private:
  bool lets_through(int64_t pixel, int64_t i) const {
    switch (mask) {
      case NormMask::kNone:
        return true;
      case NormMask::kY:
        return load(y[i]) > 0;
      case NormMask::kBits:
        return (signs[(pixel * channels + c) / 8] >> c % 8 & 1) != 0;
      default:
        return load(store<T>(static_cast<Math<T>>(line.at(x[i])))) > 0;
    }
  }
};

/// The gradient of channel c of one normalization.
template <class T>
void channel_gradient(const KernelBuffers& buffers, const BatchNormGradPlan& norm,
                      const Parameters& parameters, const NormGradPlaces& at, int64_t c) {
  const Channels& plan = norm.channels;
  const T* x = buffers.in<T>(at.x);
  const double mean = parameters.read(buffers, at.mean, c),
               inv_std = parameters.read(buffers, at.inv_std, c),
               scale = parameters.read(buffers, at.scale, c);
  Incoming<T> gradient{buffers.in<T>(0),
                       norm.adds ? buffers.in<T>(kGradAddend) : nullptr,
                       norm.mask == NormMask::kY ? buffers.in<T>(kGradY) : nullptr,
                       x,
                       norm.mask == NormMask::kBits ? buffers.in<uint8_t>(kGradSigns) : nullptr,
                       plan.channels,
                       c,
                       norm.mask,
                       {}};
  if (norm.mask == NormMask::kLine)
    gradient.line = line_of<T>(mean, inv_std, scale, parameters.read(buffers, kGradBias, c));
  T* kept = norm.keeps_sum ? buffers.out<T>(kGradSum) : nullptr;
  double sum = 0, product = 0;
  for_channel(plan, c, [&](int64_t pixel, int64_t i) {
    const T g = gradient.at(pixel, i);
    if (kept != nullptr) kept[i] = g;
    sum += load(g);
    product += load(g) * ((load(x[i]) - mean) * inv_std);
  });
  parameters.write(buffers, at.d_scale, c, product);
  parameters.write(buffers, at.d_bias, c, sum);
  T* dx = buffers.out<T>(at.dx);
  if (dx == nullptr) return;
  const auto count = static_cast<double>(plan.per_channel());
  const double factor = scale * inv_std;
  const double slope = product / count * inv_std, offset = sum / count;
  for_channel(plan, c, [&](int64_t pixel, int64_t i) {
    const T g = kept != nullptr ? kept[i] : gradient.at(pixel, i);
    const double value = factor * (load(g) - offset - (load(x[i]) - mean) * slope);
    dx[i] = store<T>(static_cast<Math<T>>(value));
  });
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const BatchNormGradPlan& norm) {
  const auto body = [=, parameters = plan_parameters(call),
                     threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(norm.channels.channels, 1, threads, [&](int64_t c, int64_t) {
      channel_gradient<T>(buffers, norm, parameters, kOneGrad, c);
      if (norm.has_other) channel_gradient<T>(buffers, norm, parameters, kOtherGrad, c);
    });
  };
  // The second gradient reads what the first one would be written over.
  return norm.has_other ? make_kernel(body) : make_kernel(body, 0, batch_norm_grad_in_place);
}

Prepared prepare_gradient(const KernelCall& call) {
  BatchNormGradPlan plan;
  if (std::string why = plan_batch_norm_grad(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return gradient_kernel<T>(call, plan); });
}

/// The reason why an operand does not hold the signs of Y, or an empty string.
std::string signs_refusal(const Channels& plan, const Operand& signs) {
  if (plan.channels % 8 != 0) return "signs of channels that are no multiple of 8";
  const bool fits = signs.dtype == DType::kU8 && signs.size() == plan.sign_bytes();
  return fits ? "" : "signs that are not a byte for 8 channels";
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
  if (std::string why = float_refusal(call, SIZE_MAX, kNormSigns); !why.empty()) return why;
  plan.adds = own && call.has_input(kNormResidual);
  plan.relu = own && attributes_of(call).get_string("activation", "") == "Relu";
  plan.keeps_signs = own && call.has_output(kNormSigns);
  // The statistics alone, for one that normalizes what it adds.
  const bool needs_y = !own || plan.adds || plan.relu || plan.keeps_signs;
  if (needs_y && !call.has_output(0)) throw model_error(call, "Y is missing");
  if (plan.adds) {
    if (std::string why = check_alike(call, kNormResidual, 0); !why.empty()) return why;
  }
  for (size_t i = kNormLine; own && i < call.inputs.size(); ++i)
    plan.adds_line = plan.adds_line || call.has_input(i);
  if (plan.adds_line) {
    if (!plan.adds) throw model_error(call, "a line for a residual that is missing");
    for (size_t i = kNormLine; i < kNormLine + 4; ++i)
      require_size(call, i, plan.channels.channels);
  }
  if (plan.keeps_signs) {
    const Operand& signs = call.outputs[kNormSigns];
    if (std::string why = signs_refusal(plan.channels, signs); !why.empty()) return why;
  }
  const bool same = !call.has_output(0) || call.outputs[0].dtype == call.inputs[0].dtype;
  return same ? "" : "X and Y of different types";
}

namespace {

/// The reason why there is no kernel for a second normalization, or an empty string.
std::string other_refusal(const KernelCall& call, BatchNormGradPlan& plan) {
  for (const size_t i : {kOtherGrad.x, kOtherGrad.scale, kOtherGrad.mean, kOtherGrad.inv_std})
    plan.has_other = plan.has_other || call.has_input(i);
  for (const size_t i : {kOtherGrad.dx, kOtherGrad.d_scale, kOtherGrad.d_bias})
    plan.has_other = plan.has_other || call.has_output(i);
  if (!plan.has_other) return "";
  for (const size_t i : {kOtherGrad.scale, kOtherGrad.mean, kOtherGrad.inv_std})
    require_size(call, i, plan.channels.channels);
  if (plan.mask == NormMask::kLine) return "a second normalization with B";
  require_size(call, kOtherGrad.x, call.inputs[1].size());
  return check_alike(call, kOtherGrad.x, 1);
}

}  // namespace

std::string plan_batch_norm_grad(const KernelCall& call, BatchNormGradPlan& plan) {
  plan.channels = plan_channels(call, 1);
  require_size(call, 0, call.inputs[1].size());
  for (size_t i = 2; i <= 4; ++i) require_size(call, i, plan.channels.channels);
  if (std::string why = float_refusal(call, kGradSigns); !why.empty()) return why;
  plan.adds = call.has_input(kGradAddend);
  plan.keeps_sum = call.has_output(kGradSum);
  const int masks = static_cast<int>(call.has_input(kGradY)) +
                    static_cast<int>(call.has_input(kGradBias)) +
                    static_cast<int>(call.has_input(kGradSigns));
  if (masks > 1) return "more than one of Y, B and the signs of Y";
  if (call.has_input(kGradY)) plan.mask = NormMask::kY;
  if (call.has_input(kGradBias)) {
    plan.mask = NormMask::kLine;
    require_size(call, kGradBias, plan.channels.channels);
  }
  if (call.has_input(kGradSigns)) {
    plan.mask = NormMask::kBits;
    const Operand& signs = call.inputs[kGradSigns];
    if (std::string why = signs_refusal(plan.channels, signs); !why.empty()) return why;
  }
  for (const size_t i : {kGradAddend, kGradY}) {
    if (!call.has_input(i)) continue;
    if (std::string why = check_alike(call, i, 1); !why.empty()) return why;
  }
  if (std::string why = other_refusal(call, plan); !why.empty()) return why;
  bool same = call.inputs[0].dtype == call.inputs[1].dtype;
  for (const size_t i : {size_t{0}, kGradSum, kOtherGrad.dx})
    same = same && (!call.has_output(i) || call.outputs[i].dtype == call.inputs[0].dtype);
  return same ? "" : "dY, X and dX of different types";
}

bool has_fused_parts(const KernelCall& call) {
  if (call.domain.empty()) return false;
  for (size_t i = kNormResidual; i < call.inputs.size(); ++i) {
    if (call.has_input(i)) return true;
  }
  if (call.op == "BatchNormalizationGrad") return call.has_output(kGradSum);
  return attributes_of(call).has("activation");
}

bool batch_norm_in_place(size_t input, size_t output) {
  return output == 0 && (input == 0 || input == kNormResidual);
}

bool batch_norm_grad_in_place(size_t input, size_t output) {
  const bool as_dy = input == 0 || input == kGradAddend || input == kGradY;
  return (output == 0 && (as_dy || input == 1)) || (output == kGradSum && as_dy);
}

bool batch_norm_grads_in_place(size_t input, size_t output) {
  const bool full = input <= 1 || input == kGradAddend || input == kOtherGrad.x;
  return full && (output == kOneGrad.dx || output == kOtherGrad.dx);
}

std::vector<KernelRow> batch_norm_rows() {
  return {
      {"", "BatchNormalization", "reference", prepare_forward},
      {"ai.halfnote", "BatchNormalization", "reference", prepare_forward},
      {"ai.halfnote", "BatchNormalizationGrad", "reference", prepare_gradient},
  };
}

}  // namespace halfnote::cpu
