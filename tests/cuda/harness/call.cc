// Runs calls on the CPU and on the device under test.
#include "tests/cuda/harness/call.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "kernels/cuda/table.h"

namespace halfnote::cuda_emulated {

Tensor random(DType dtype, Shape shape, double low, double high, uint32_t seed) {
  std::mt19937 engine(seed);
  Tensor tensor(DType::kF64, std::move(shape));
  for (double& x : tensor.mutable_data<double>()) x = low + (high - low) * (engine() * 0x1p-32);
  return dtype == DType::kF64 ? tensor : tensor.cast_to(dtype);
}

Tensor integers(std::vector<int64_t> values, Shape shape) {
  Tensor tensor(DType::kI64, std::move(shape));
  std::copy(values.begin(), values.end(), tensor.mutable_data<int64_t>().begin());
  return tensor;
}

Tensor bits_for(const Shape& x) {
  Shape shape{x[0]};
  shape.insert(shape.end(), x.begin() + 2, x.end());
  shape.push_back(x[1] / 8);
  std::mt19937 engine(11);
  Tensor bits(DType::kU8, shape);
  for (uint8_t& byte : bits.mutable_data<uint8_t>()) byte = static_cast<uint8_t>(engine() >> 7);
  return bits;
}

Tensor far_from_zero(DType dtype, const Shape& shape) {
  std::mt19937 engine(12);
  Tensor tensor(DType::kF64, shape);
  for (double& x : tensor.mutable_data<double>()) x = engine() >> 7 & 1 ? 8 : -8;
  return tensor.cast_to(dtype);
}

KernelCall kernel_call(const Call& call) {
  KernelCall made;
  made.domain = call.domain;
  made.op = call.op;
  made.attributes = &call.attributes;
  for (const Tensor& input : call.inputs) {
    made.inputs.push_back({input.dtype(), input.shape(), {}, nullptr});
  }
  for (const size_t i : call.known) made.inputs[i].constant = &call.inputs[i];
  for (const Result& output : call.outputs) {
    made.outputs.push_back({output.dtype, output.shape, {}, nullptr});
  }
  return made;
}

std::vector<Tensor> on_cpu(const Call& call) {
  const KernelChoice choice = cpu_kernels().choose(kernel_call(call), "reference");
  if (!choice.kernel) throw Error(ErrorCode::kUnsupported, test::refusals_of(choice));
  std::vector<Tensor> results;
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const Tensor& input : call.inputs) from.push_back(input.defined() ? input.bytes() : nullptr);
  for (const Result& output : call.outputs) {
    results.push_back(output.dtype == DType::kUndefined ? Tensor()
                                                        : Tensor(output.dtype, output.shape));
  }
  for (Tensor& r : results) to.push_back(r.defined() ? r.mutable_bytes() : nullptr);
  std::vector<std::byte> workspace(choice.kernel->workspace_bytes() + 64);
  auto* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
  choice.kernel->run({from, to, aligned});
  return results;
}

std::vector<Tensor> on_device(const Call& call) {
  return test::run_on_device(kernel_call(call), call.inputs);
}

std::string_view row_of(const Call& call) {
  const KernelChoice choice = kernel_table().choose(kernel_call(call));
  return choice.row == nullptr ? "none" : choice.row->name;
}

void check(const Call& call) {
  const KernelChoice choice = kernel_table().choose(kernel_call(call));
  ASSERT_TRUE(choice.kernel) << call.op << " has no kernel: " << test::refusals_of(choice);
  test::check_on_device(kernel_call(call), call.inputs, on_cpu(call));
}

}  // namespace halfnote::cuda_emulated
