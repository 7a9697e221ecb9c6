#include "kernels/cpu/pointwise/shapes.h"

#include <algorithm>

namespace halfnote::cpu::pointwise {

Shape elements_of(const PointwiseProgram& program, const KernelCall& call) {
  if (!sum_of(program)) return call.outputs[0].shape;
  Shape shape;
  for (const Operand& input : call.inputs) {
    if (input.dtype != DType::kI64) shape = broadcast_shapes(shape, input.shape);
  }
  return shape;
}

SummedShape summed_shape(const Shape& elements, size_t dims) {
  const std::span<const int64_t> all = elements;
  return {element_count(all.first(dims)), element_count(all.subspan(dims))};
}

std::string unfit_outputs(const PointwiseProgram& program, const KernelCall& call) {
  const std::optional<PointwiseSum> sum = sum_of(program);
  const Shape whole = elements_of(program, call);
  if (sum && sum->dims > whole.size()) return "a sum over dims that are not there";
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    const bool is_sum = sum && sum->output == k;
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(is_sum ? sum->dims : 0);
    if (!std::equal(first, whole.end(), call.outputs[k].shape.begin(), call.outputs[k].shape.end()))
      return "outputs of different shapes";
  }
  return {};
}

}  // namespace halfnote::cpu::pointwise
