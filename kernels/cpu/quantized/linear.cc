// QuantizeLinear and DequantizeLinear: y = saturate(round(x / scale) + zero), x = (y - zero)·scale,
// with one scale for the tensor, for each index of an axis, or for each block along it. The
// division is in f32 (f64 for f64), as ONNX's words "the type of x" mean on a CPU.
#include "kernels/cpu/quantized/linear.h"

#include "kernels/cpu/quantized/parts.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

/// The reason why the scale does not fit x, or an empty string.
std::string plan_scales(const KernelCall& call, ScaleMap& map) {
  const Shape &x = call.inputs[0].shape, &scale = call.inputs[1].shape;
  if (call.inputs[1].size() == 1 && scale.size() < 2) return {};
  const auto rank = static_cast<int64_t>(x.size());
  const auto axis =
      static_cast<size_t>(normalize_axis(attributes_of(call).get_int("axis", 1), rank));
  map.dim = x[axis];
  map.inner = element_count(std::span<const int64_t>(x).subspan(axis + 1));
  map.block = attributes_of(call).get_int("block_size", 0);
  if (scale.size() == 1 && (rank > 1 || map.block <= 0)) {
    map.kind = ScaleMap::Kind::kAxis;
    return scale[0] == map.dim ? "" : "as many scales as indices of the axis are needed";
  }
  map.kind = ScaleMap::Kind::kBlocked;
  Shape wanted = x;
  if (map.block > 0) wanted[axis] = x[axis] / map.block + (x[axis] % map.block != 0 ? 1 : 0);
  map.parts = wanted[axis];
  return map.block > 0 && scale == wanted ? "" : "the scales do not fit the blocks";
}

/// The reason why the operands of either op do not fit, or an empty string.
std::string unfit_operands(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    return "an operand is missing";
  }
  if (!is_element(call.inputs[0].dtype) || !is_element(call.outputs[0].dtype)) {
    return "no numbers";
  }
  if (!is_element(call.inputs[1].dtype)) return "the scale is no number";
  if (!call.has_input(2)) return {};
  return call.inputs[2].size() == call.inputs[1].size() ? ""
                                                        : "scale and zero point differ in size";
}

double zero_point(const KernelBuffers& buffers, DType dtype, int64_t index) {
  return dtype == DType::kUndefined ? 0 : read_element(buffers.inputs[2], dtype, index);
}

Prepared prepare_quantize(const KernelCall& call) {
  LinearPlan plan;
  if (std::string reason = plan_linear(call, plan); !reason.empty()) return Prepared::no(reason);
  const bool saturate = attributes_of(call).get_int("saturate", 1) != 0;
  const Overflow overflow = saturate ? Overflow::kSaturate : Overflow::kInfinity;
  return make_kernel([=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = plan.map.index(i);
      const double x = read_element(buffers.inputs[0], plan.from, i);
      const double s = read_element(buffers.inputs[1], plan.scale, k);
      const double ratio = plan.from == DType::kF64
                               ? x / s
                               : static_cast<double>(static_cast<float>(x) / static_cast<float>(s));
      const double z = zero_point(buffers, plan.zero, k);
      write_quantized(is_float(plan.to) ? ratio + z : quantized(ratio, z), buffers.outputs[0],
                      plan.to, i, overflow);
    }
  });
}

Prepared prepare_dequantize(const KernelCall& call) {
  LinearPlan plan;
  if (std::string reason = plan_linear(call, plan); !reason.empty()) return Prepared::no(reason);
  if (!is_real(plan.to)) return Prepared::no("the result is no float");
  return make_kernel([=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = plan.map.index(i);
      const double distance =
          read_element(buffers.inputs[0], plan.from, i) - zero_point(buffers, plan.zero, k);
      write_real(distance * read_element(buffers.inputs[1], plan.scale, k), buffers.outputs[0],
                 plan.to, i);
    }
  });
}

}  // namespace

std::string plan_linear(const KernelCall& call, LinearPlan& plan) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return reason;
  plan.from = call.inputs[0].dtype;
  plan.scale = call.inputs[1].dtype;
  plan.zero = call.has_input(2) ? call.inputs[2].dtype : DType::kUndefined;
  plan.to = call.outputs[0].dtype;
  return plan_scales(call, plan.map);
}

std::vector<KernelRow> linear_rows() {
  return {
      {"", "DequantizeLinear", "reference", prepare_dequantize},
      {"", "QuantizeLinear", "reference", prepare_quantize},
  };
}

}  // namespace halfnote::cpu
