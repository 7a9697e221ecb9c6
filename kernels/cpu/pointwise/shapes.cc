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

SummedShape summed_shape(const Shape& elements, const PointwiseSum& sum) {
  const std::span<const int64_t> all = elements;
  const size_t first = sum.along_rows ? all.size() - sum.dims : sum.dims;
  return {element_count(all.first(first)), element_count(all.subspan(first)), sum.along_rows};
}

std::string unfit_outputs(const PointwiseProgram& program, const KernelCall& call) {
  const std::optional<PointwiseSum> sum = sum_of(program);
  const Shape whole = elements_of(program, call);
  if (sum && sum->dims > whole.size()) return "a sum over dims that are not there";
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    const bool is_sum = sum && sum->output == k;
    if (call.outputs[k].shape != (is_sum ? kept_dims(whole, *sum) : whole))
      return "outputs of different shapes";
  }
  return {};
}

}  // namespace halfnote::cpu::pointwise
