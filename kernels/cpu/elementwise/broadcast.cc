// Plans a broadcast: aligns the shapes at the right, drops dims of 1 and merges neighbours that
// every input walks through as one.
#include "kernels/cpu/elementwise/broadcast.h"

namespace halfnote::cpu {

namespace {

/// Strides of `shape` seen as `output`: 0 where it is repeated.
Shape aligned_strides(const Shape& shape, const Shape& output) {
  const auto mismatch = [&] {
    return Error(ErrorCode::kModel, "shape does not broadcast")
        .expected("a shape that broadcasts to " + to_string(output), to_string(shape));
  };
  if (shape.size() > output.size()) throw mismatch();
  const Shape own = strides_of(shape);
  const size_t lead = output.size() - shape.size();
  Shape strides(output.size(), 0);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1 && shape[d] != output[lead + d]) throw mismatch();
    strides[lead + d] = shape[d] == 1 ? 0 : own[d];
  }
  return strides;
}

}  // namespace

Runs plan_broadcast(const std::vector<Shape>& inputs, const Shape& output) {
  std::vector<Shape> strides;
  for (const Shape& shape : inputs) strides.push_back(aligned_strides(shape, output));
  return plan_runs(output, strides);
}

bool is_elementwise(const KernelCall& call, size_t input, size_t output) {
  return call.has_input(input) && call.has_output(output) &&
         call.inputs[input].size() == call.outputs[output].size() &&
         size_of(call.inputs[input].dtype) == size_of(call.outputs[output].dtype);
}

Error division_by_zero() { return Error(ErrorCode::kData, "integer division by zero"); }

}  // namespace halfnote::cpu
