#include "kernels/cpu/contraction/conv_plan.h"

#include <algorithm>

#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

/// One number for each spatial dim (`per_dim` of them); `fallback` where the attribute is absent.
std::vector<int64_t> read_dims(const KernelCall& call, std::string_view name, size_t count,
                               int64_t fallback, int64_t least) {
  std::vector<int64_t> values =
      attributes_of(call).get_ints(name, std::vector<int64_t>(count, fallback));
  if (values.size() != count) {
    throw model_error(call, "wrong number of " + std::string(name))
        .expected(std::to_string(count), std::to_string(values.size()));
  }
  for (const int64_t value : values) {
    if (value >= least) continue;
    throw model_error(call, "invalid " + std::string(name))
        .expected("numbers ≥ " + std::to_string(least), std::to_string(value));
  }
  return values;
}

void require_operands(const KernelCall& call, size_t inputs) {
  for (size_t i = 0; i < inputs; ++i) {
    if (!call.has_input(i)) throw model_error(call, "input " + std::to_string(i) + " is missing");
  }
  if (!call.has_output(0)) throw model_error(call, "the output is missing");
}

/// Shapes of x, w and y, and the attributes that all four ops share.
ConvPlan plan_common(const KernelCall& call, const Shape& x, const Shape& w, const Shape& y) {
  if (x.size() < 3 || x.size() > 5 || w.size() != x.size() || y.size() != x.size()) {
    throw model_error(call, "x " + to_string(x) + ", w " + to_string(w) + " and y " + to_string(y) +
                                " are not of one rank from 3 to 5");
  }
  ConvPlan plan;
  plan.spatial = x.size() - 2;
  plan.groups = attributes_of(call).get_int("group", 1);
  plan.batch = x[0];
  plan.channels = x[1];
  plan.filters = w[0];
  const bool fits = y[0] == x[0] && y[1] == w[0] && plan.groups > 0 && x[1] % plan.groups == 0 &&
                    w[0] % plan.groups == 0 && w[1] == x[1] / plan.groups;
  if (!fits) {
    throw model_error(call, "x " + to_string(x) + ", w " + to_string(w) + " and y " + to_string(y) +
                                " do not fit " + std::to_string(plan.groups) + " group(s)");
  }
  const std::vector<int64_t> kernel(w.begin() + 2, w.end());
  if (attributes_of(call).get_ints("kernel_shape", kernel) != kernel) {
    throw model_error(call, "kernel_shape is not that of the weights")
        .expected(to_string(kernel), to_string(attributes_of(call).get_ints("kernel_shape")));
  }
  const auto strides = read_dims(call, "strides", plan.spatial, 1, 1);
  const auto dilations = read_dims(call, "dilations", plan.spatial, 1, 1);
  for (size_t i = 0; i < plan.spatial; ++i) {
    const size_t d = 3 - plan.spatial + i;
    plan.in[d] = x[2 + i];
    plan.out[d] = y[2 + i];
    plan.kernel[d] = kernel[i];
    plan.stride[d] = strides[i];
    plan.dilation[d] = dilations[i];
  }
  return plan;
}

int64_t reach(const ConvPlan& plan, size_t d) {
  return (plan.kernel[d] - 1) * plan.dilation[d] + 1;
}

void explicit_pads(const KernelCall& call, ConvPlan& plan) {
  const auto pads = read_dims(call, "pads", 2 * plan.spatial, 0, 0);
  for (size_t i = 0; i < plan.spatial; ++i) {
    plan.pad_begin[3 - plan.spatial + i] = pads[i];
    plan.pad_end[3 - plan.spatial + i] = pads[plan.spatial + i];
  }
}

/// The odd element of `total` goes to the end, or to the beginning.
void split_pad(ConvPlan& plan, size_t d, int64_t total, bool odd_at_end) {
  total = std::max<int64_t>(0, total);
  plan.pad_begin[d] = odd_at_end ? total / 2 : total - total / 2;
  plan.pad_end[d] = total - plan.pad_begin[d];
}

/// The pads of a forward convolution, and the check that they lead to the output's shape.
void plan_pads(const KernelCall& call, ConvPlan& plan) {
  const std::string mode = attributes_of(call).get_string("auto_pad", "NOTSET");
  const bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  if (mode == "NOTSET") {
    explicit_pads(call, plan);
  } else if (!same && mode != "VALID") {
    throw model_error(call, "unknown auto_pad")
        .expected("NOTSET, VALID, SAME_UPPER or SAME_LOWER", mode);
  }
  for (size_t d = 3 - plan.spatial; d < 3; ++d) {
    if (same) {
      const int64_t needed = (plan.out[d] - 1) * plan.stride[d] + reach(plan, d);
      split_pad(plan, d, needed - plan.in[d], mode == "SAME_UPPER");
    }
    const int64_t room = plan.in[d] + plan.pad_begin[d] + plan.pad_end[d] - reach(plan, d);
    const int64_t outputs = room < 0 ? 0 : room / plan.stride[d] + 1;
    const int64_t expected = same ? (plan.in[d] + plan.stride[d] - 1) / plan.stride[d] : outputs;
    if (plan.out[d] != expected) {
      throw model_error(call, "wrong size of a spatial dim of the convolution's output")
          .expected(std::to_string(expected), std::to_string(plan.out[d]));
    }
  }
}

}  // namespace

Range outputs_within(int64_t begin, int64_t end, int64_t stride, int64_t offset, int64_t outputs) {
  const auto ceiling = [stride](int64_t value) {
    if (value <= 0) return int64_t{0};
    return stride == 1 ? value : (value + stride - 1) / stride;
  };
  return {std::min(outputs, ceiling(begin - offset)), std::min(outputs, ceiling(end - offset))};
}

std::string conv_rank_refusal(const Shape& shape) {
  if (shape.size() >= 3 && shape.size() <= 5) return {};
  return "neither 1, 2 nor 3 spatial dims: " + to_string(shape);
}

ConvPlan plan_conv(const KernelCall& call) {
  require_operands(call, 2);
  ConvPlan plan =
      plan_common(call, call.inputs[0].shape, call.inputs[1].shape, call.outputs[0].shape);
  plan_pads(call, plan);
  if (call.has_input(2) && call.inputs[2].shape != Shape{plan.filters}) {
    throw model_error(call, "bias of the wrong shape")
        .expected(to_string(Shape{plan.filters}), to_string(call.inputs[2].shape));
  }
  return plan;
}

ConvPlan plan_conv_grad_input(const KernelCall& call) {
  require_operands(call, 2);
  ConvPlan plan =
      plan_common(call, call.outputs[0].shape, call.inputs[1].shape, call.inputs[0].shape);
  plan_pads(call, plan);
  return plan;
}

ConvPlan plan_conv_grad_weight(const KernelCall& call) {
  require_operands(call, 2);
  ConvPlan plan =
      plan_common(call, call.inputs[1].shape, call.outputs[0].shape, call.inputs[0].shape);
  plan_pads(call, plan);
  return plan;
}

ConvPlan plan_conv_transpose(const KernelCall& call) {
  require_operands(call, 2);
  // The input is the y of the underlying convolution; its weight (C, M/group, k…) is already that
  // of the plan.
  ConvPlan plan =
      plan_common(call, call.outputs[0].shape, call.inputs[1].shape, call.inputs[0].shape);
  const std::string mode = attributes_of(call).get_string("auto_pad", "NOTSET");
  const auto extra = read_dims(call, "output_padding", plan.spatial, 0, 0);
  const bool from_shape =
      mode == "SAME_UPPER" || mode == "SAME_LOWER" || attributes_of(call).has("output_shape");
  if (!from_shape && mode == "NOTSET") explicit_pads(call, plan);
  for (size_t i = 0; i < plan.spatial; ++i) {
    const size_t d = 3 - plan.spatial + i;
    const int64_t full = plan.stride[d] * (plan.out[d] - 1) + extra[i] + reach(plan, d);
    if (from_shape) {
      split_pad(plan, d, full - plan.in[d], mode == "SAME_UPPER");
    } else if (plan.in[d] != full - plan.pad_begin[d] - plan.pad_end[d]) {
      throw model_error(call, "wrong size of a spatial dim of the output")
          .expected(std::to_string(full - plan.pad_begin[d] - plan.pad_end[d]),
                    std::to_string(plan.in[d]));
    }
  }
  if (call.has_input(2) && call.inputs[2].shape != Shape{plan.channels}) {
    throw model_error(call, "bias of the wrong shape")
        .expected(to_string(Shape{plan.channels}), to_string(call.inputs[2].shape));
  }
  return plan;
}

}  // namespace halfnote::cpu
