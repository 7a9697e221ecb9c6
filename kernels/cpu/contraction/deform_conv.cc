// DeformConv in two spatial dims: a convolution whose taps move by offsets that are data, read
// between the pixels, and may be weighted by a mask.
#include "kernels/cpu/contraction/deform_conv.h"

#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

double value(const DeformPlan& plan, const double* x, const KernelBuffers& buffers, int64_t n,
             int64_t m, int64_t oh, int64_t ow) {
  const ConvPlan& conv = plan.conv;
  const int64_t channels = conv.group_channels(), taps = conv.kernel_size();
  const int64_t first = m / conv.group_filters() * channels;
  const int64_t place = oh * conv.out[2] + ow, area = conv.out_size();
  const auto read = [&](size_t input, int64_t at) {
    return read_real(buffers.inputs[input], plan.type, at);
  };
  double sum = plan.has_bias ? read(3, m) : 0;
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t channel = first + c;
    const int64_t group = n * plan.offset_groups + channel / (conv.channels / plan.offset_groups);
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t kh = tap / conv.kernel[2], kw = tap % conv.kernel[2];
      const int64_t at = (group * taps + tap) * 2 * area + place;
      const double y = static_cast<double>(oh * conv.stride[1] + conv.offset(1, kh)) + read(2, at);
      const double where =
          static_cast<double>(ow * conv.stride[2] + conv.offset(2, kw)) + read(2, at + area);
      const double mask = plan.has_mask ? read(4, (group * taps + tap) * area + place) : 1;
      const double weight = read(1, (m * channels + c) * taps + tap);
      const double* image = x + (n * conv.channels + channel) * conv.in_size();
      sum +=
          weight * mask *
          between_pixels([image](int64_t i) { return image[i]; }, conv.in[1], conv.in[2], y, where);
    }
  }
  return sum;
}

Prepared prepare_deform_conv(const KernelCall& call) {
  DeformPlan plan;
  if (std::string reason = plan_deform(call, plan); !reason.empty()) return Prepared::no(reason);
  const int64_t size = call.inputs[0].size();
  const auto body = [=](const KernelBuffers& buffers) {
    auto* x = reinterpret_cast<double*>(buffers.workspace);
    load_reals(buffers.inputs[0], plan.type, 0, size, x);
    const ConvPlan& p = plan.conv;
    for (int64_t i = 0; i < p.y_size(); ++i) {
      const int64_t place = i % p.out_size(), m = i / p.out_size() % p.filters;
      const double result = value(plan, x, buffers, i / p.out_size() / p.filters, m,
                                  place / p.out[2], place % p.out[2]);
      write_real(result, buffers.outputs[0], plan.type, i);
    }
  };
  return make_kernel(body, static_cast<size_t>(size) * sizeof(double));
}

}  // namespace

std::string plan_deform(const KernelCall& call, DeformPlan& plan) {
  if (!call.has_input(2) || !call.has_output(0)) return "an operand is missing";
  if (call.inputs[0].shape.size() != 4) return "not two spatial dims";
  KernelCall plain = call;
  plain.inputs.resize(2);
  plan.conv = plan_conv(plain);
  plan.type = call.inputs[0].dtype;
  plan.offset_groups = attributes_of(call).get_int("offset_group", 1);
  plan.has_bias = call.has_input(3);
  plan.has_mask = call.has_input(4);
  if (!is_real(plan.type) || call.outputs[0].dtype != plan.type) return "no floats";
  for (const Operand& input : call.inputs) {
    if (input.present() && input.dtype != plan.type) return "operands of different types";
  }
  const int64_t groups = plan.offset_groups, taps = plan.conv.kernel_size();
  if (groups < 1 || plan.conv.channels % groups != 0) return "offset_group does not fit";
  const auto wanted = [&](int64_t parts) {
    return Shape{plan.conv.batch, groups * taps * parts, plan.conv.out[1], plan.conv.out[2]};
  };
  if (call.inputs[2].shape != wanted(2)) return "the offsets do not fit";
  if (plan.has_mask && call.inputs[4].shape != wanted(1)) return "the mask does not fit";
  if (plan.has_bias && call.inputs[3].shape != Shape{plan.conv.filters}) {
    return "the bias does not fit";
  }
  return {};
}

std::vector<KernelRow> deform_conv_rows() {
  return {{"", "DeformConv", "reference", prepare_deform_conv}};
}

}  // namespace halfnote::cpu
