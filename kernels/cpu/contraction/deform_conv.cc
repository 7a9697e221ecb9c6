// DeformConv in two spatial dims: a convolution whose taps move by offsets that are data, read
// between the pixels, and may be weighted by a mask.
#include <cmath>
#include <limits>

#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

/// Between the four pixels around (y, x); pixels outside of the image are zero, and NaN is nowhere.
double between(const double* image, int64_t height, int64_t width, double y, double x) {
  if (std::isnan(y) || std::isnan(x)) return std::numeric_limits<double>::quiet_NaN();
  const double top = std::floor(y), left = std::floor(x);
  double sum = 0;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const double row = top + i, column = left + j;
      if (row < 0 || column < 0 || row >= static_cast<double>(height) ||
          column >= static_cast<double>(width)) {
        continue;
      }
      const double weight = (1 - std::fabs(y - row)) * (1 - std::fabs(x - column));
      sum += weight * image[static_cast<int64_t>(row) * width + static_cast<int64_t>(column)];
    }
  }
  return sum;
}

/// Operands: X, W, offset, B, mask.
struct DeformPlan {
  ConvPlan conv;
  int64_t offset_groups = 1;
  DType type = DType::kUndefined;
  bool has_bias = false, has_mask = false;
  Shape offsets;  // (N, offset_groups · taps · 2, oH, oW)

  double value(const double* x, const KernelBuffers& buffers, int64_t n, int64_t m, int64_t oh,
               int64_t ow) const {
    const int64_t channels = conv.group_channels(), taps = conv.kernel_size();
    const int64_t first = m / conv.group_filters() * channels;
    const int64_t place = oh * conv.out[2] + ow, area = conv.out_size();
    double sum = has_bias ? read_real(buffers.inputs[3], type, m) : 0;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t channel = first + c;
      const int64_t group = n * offset_groups + channel / (conv.channels / offset_groups);
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t kh = tap / conv.kernel[2], kw = tap % conv.kernel[2];
        const int64_t at = (group * taps + tap) * 2 * area + place;
        const double y = static_cast<double>(oh * conv.stride[1] + conv.offset(1, kh)) +
                         read_real(buffers.inputs[2], type, at);
        const double where = static_cast<double>(ow * conv.stride[2] + conv.offset(2, kw)) +
                             read_real(buffers.inputs[2], type, at + area);
        const double mask =
            has_mask ? read_real(buffers.inputs[4], type, (group * taps + tap) * area + place) : 1;
        const double weight = read_real(buffers.inputs[1], type, (m * channels + c) * taps + tap);
        sum += weight * mask *
               between(x + (n * conv.channels + channel) * conv.in_size(), conv.in[1], conv.in[2],
                       y, where);
      }
    }
    return sum;
  }
};

/// Fills the plan; the reason why the operands do not fit, or an empty string.
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
      const double value = plan.value(x, buffers, i / p.out_size() / p.filters, m, place / p.out[2],
                                      place % p.out[2]);
      write_real(value, buffers.outputs[0], plan.type, i);
    }
  };
  return make_kernel(body, static_cast<size_t>(size) * sizeof(double));
}

}  // namespace

std::vector<KernelRow> deform_conv_rows() {
  return {{"", "DeformConv", "reference", prepare_deform_conv}};
}

}  // namespace halfnote::cpu
