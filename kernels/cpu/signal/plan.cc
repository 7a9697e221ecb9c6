#include "kernels/cpu/signal/plan.h"

#include <algorithm>
#include <span>

#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

bool fits_parts(const Operand& operand) {
  return operand.shape.size() >= 2 && (operand.shape.back() == 1 || operand.shape.back() == 2);
}

}  // namespace

Line::Line(const Shape& shape, size_t axis) : dim(shape[axis]), parts(shape.back()) {
  const std::span<const int64_t> dims(shape);
  inner = element_count(dims.subspan(axis + 1, shape.size() - axis - 2));
}

std::string plan_dft(const KernelCall& call, DftPlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  const Operand &in = call.inputs[0], &out = call.outputs[0];
  if (!is_real(in.dtype) || !is_real(out.dtype)) return "no floats";
  if (!fits_parts(in) || !fits_parts(out)) return "the last dim is neither 1 nor 2";
  if (call.has_input(1) && !call.inputs[1].constant) return "the length is not known";
  if (call.has_input(2) && !call.inputs[2].constant) return "the axis is not known";
  const int64_t given = call.has_input(2) ? call.inputs[2].constant->at_as_int(0) : -2;
  const auto rank = static_cast<int64_t>(in.shape.size());
  const auto axis = static_cast<size_t>(normalize_axis(given, rank));
  if (axis + 1 == in.shape.size()) return "the axis is that of the parts";
  plan.from = Line(in.shape, axis);
  plan.to = Line(out.shape, axis);
  plan.type = in.dtype;
  plan.result = out.dtype;
  plan.inverse = attributes_of(call).get_int("inverse", 0) != 0;
  const bool one_sided = attributes_of(call).get_int("onesided", 0) != 0;
  plan.mirrored = plan.inverse && one_sided;
  plan.length = plan.mirrored ? 2 * (plan.from.dim - 1) : plan.from.dim;
  if (call.has_input(1)) plan.length = call.inputs[1].constant->at_as_int(0);
  plan.bins = one_sided && !plan.inverse ? plan.length / 2 + 1 : plan.length;
  if (plan.length < 1 || plan.to.dim != plan.bins) return "the output has another length";
  // Of the result: a signal of no elements has a transform too, of zeros.
  plan.lines = out.size() / std::max<int64_t>(1, plan.to.dim * plan.to.parts);
  return {};
}

std::string plan_stft(const KernelCall& call, StftPlan& plan) {
  if (!call.has_input(1) || !call.has_output(0)) return "an operand is missing";
  const Operand &in = call.inputs[0], &out = call.outputs[0];
  if (!is_real(in.dtype) || out.dtype != in.dtype) return "no floats";
  if (in.shape.size() != 3 || out.shape.size() != 4 || !fits_parts(in) || out.shape[3] != 2) {
    return "the shapes are not those of signals";
  }
  if (!call.inputs[1].constant || (call.has_input(3) && !call.inputs[3].constant)) {
    return "step and length are not known before the first step";
  }
  plan.type = in.dtype;
  plan.batch = in.shape[0];
  plan.signal_length = in.shape[1];
  plan.parts = in.shape[2];
  plan.step = call.inputs[1].constant->at_as_int(0);
  plan.length = call.has_input(3)   ? call.inputs[3].constant->at_as_int(0)
                : call.has_input(2) ? call.inputs[2].size()
                                    : plan.signal_length;  // one frame
  const bool one_sided = attributes_of(call).get_int("onesided", 1) != 0;
  plan.bins = one_sided ? plan.length / 2 + 1 : plan.length;
  plan.windowed = call.has_input(2);
  if (plan.windowed && call.inputs[2].size() != plan.length) return "the window does not fit";
  if (plan.windowed && call.inputs[2].dtype != in.dtype) return "a window of another type";
  plan.frames = out.shape[1];
  if (plan.step < 1 || plan.length < 1 || plan.length > plan.signal_length ||
      out.shape[0] != plan.batch || out.shape[2] != plan.bins ||
      plan.frames != (plan.signal_length - plan.length) / plan.step + 1) {
    return "the output has another shape";
  }
  return {};
}

}  // namespace halfnote::cpu
