// The harness of the kernel tests.
#include "harness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "base/error.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote::test {

namespace {

bool is_known(const Tensor& input) {
  return is_integer(input.dtype()) || input.dtype() == DType::kBool;
}

KernelCall make_call(std::string_view domain, std::string_view op,
                     const std::vector<Tensor>& inputs, const Attributes& attributes,
                     const std::vector<OutputSpec>& outputs, const RunOptions& options) {
  KernelCall call;
  call.domain = domain;
  call.op = op;
  call.attributes = &attributes;
  call.threads = options.threads;
  for (const Tensor& input : inputs) {
    Operand operand;
    operand.dtype = input.dtype();
    operand.shape = input.shape();
    if (options.constants && input.defined() && is_known(input)) operand.constant = &input;
    call.inputs.push_back(operand);
  }
  for (size_t i : options.known) {
    if (i < inputs.size() && inputs[i].defined()) call.inputs[i].constant = &inputs[i];
  }
  for (const OutputSpec& output : outputs) {
    Operand operand;
    operand.dtype = output.dtype;
    operand.shape = output.shape;
    call.outputs.push_back(operand);
  }
  return call;
}

std::string join(const std::vector<Refusal>& reasons) {
  std::string text;
  for (const Refusal& reason : reasons) {
    text += (text.empty() ? "" : "; ") + std::string(reason.kernel) + ": " + reason.reason;
  }
  return text.empty() ? "no row" : text;
}

/// A tensor filled with bytes that are NaN in every float type.
Tensor rubbish(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  if (tensor.byte_size() != 0) std::memset(tensor.mutable_bytes(), 0xff, tensor.byte_size());
  return tensor;
}

/// Runs with the output `shared_output` lying over the input `shared_input`, or all apart (-1).
std::vector<Tensor> run_once(const Kernel& kernel, const std::vector<Tensor>& inputs,
                             const std::vector<OutputSpec>& outputs, int shared_input = -1,
                             int shared_output = -1) {
  std::vector<Tensor> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const OutputSpec& output = outputs[i];
    results.push_back(output.dtype == DType::kUndefined ? Tensor()
                                                        : rubbish(output.dtype, output.shape));
  }
  std::vector<const std::byte*> from;
  for (const Tensor& input : inputs) from.push_back(input.defined() ? input.bytes() : nullptr);
  std::vector<std::byte*> to;
  for (Tensor& result : results) to.push_back(result.defined() ? result.mutable_bytes() : nullptr);
  if (shared_output >= 0) {
    const Tensor& input = inputs[static_cast<size_t>(shared_input)];
    if (input.byte_size() != 0) {
      std::memcpy(to[static_cast<size_t>(shared_output)], input.bytes(), input.byte_size());
    }
    from[static_cast<size_t>(shared_input)] = to[static_cast<size_t>(shared_output)];
  }
  Tensor workspace = rubbish(DType::kU8, {static_cast<int64_t>(kernel.workspace_bytes())});
  kernel.run({from, to, kernel.workspace_bytes() == 0 ? nullptr : workspace.mutable_bytes()});
  return results;
}

void expect_identical(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted,
                      const std::string& what) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].defined()) continue;
    EXPECT_TRUE(identical(got[i], wanted[i])) << "output " << i << " differs " << what;
  }
}

void check_in_place(const Kernel& kernel, const std::vector<Tensor>& inputs,
                    const std::vector<OutputSpec>& outputs, const std::vector<Tensor>& wanted) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!inputs[i].defined() || !wanted[o].defined() || !kernel.can_share(i, o)) continue;
      ASSERT_EQ(inputs[i].byte_size(), wanted[o].byte_size()) << "can_share() of other sizes";
      expect_identical(run_once(kernel, inputs, outputs, static_cast<int>(i), static_cast<int>(o)),
                       wanted, "over input " + std::to_string(i));
    }
  }
}

}  // namespace

std::vector<Tensor> run_kernel(std::string_view domain, std::string_view op,
                               const std::vector<Tensor>& inputs, const Attributes& attributes,
                               const std::vector<OutputSpec>& outputs, const RunOptions& options) {
  KernelCall call = make_call(domain, op, inputs, attributes, outputs, options);
  const KernelChoice choice = cpu_kernels().choose(call, options.kernel);
  if (!choice.kernel) {
    throw Error(ErrorCode::kUnsupported, join(choice.refusals)).at({.op = std::string(op)});
  }
  std::vector<Tensor> results = run_once(*choice.kernel, inputs, outputs);
  if (!options.check_repeats) return results;
  for (call.threads = 2; call.threads <= 3; ++call.threads) {
    const KernelChoice other = cpu_kernels().choose(call, options.kernel);
    expect_identical(run_once(*other.kernel, inputs, outputs), results,
                     "with " + std::to_string(call.threads) + " threads");
  }
  check_in_place(*choice.kernel, inputs, outputs, results);
  call.threads = 1;
  if (options.kernel == "reference" && options.check_device) check_on_device(call, inputs, results);
  return results;
}

Tensor run_one(std::string_view domain, std::string_view op, const std::vector<Tensor>& inputs,
               const Attributes& attributes, OutputSpec output, const RunOptions& options) {
  if (output.dtype == DType::kUndefined) output = {inputs[0].dtype(), inputs[0].shape()};
  return run_kernel(domain, op, inputs, attributes, {output}, options)[0];
}

std::string refusals(std::string_view domain, std::string_view op,
                     const std::vector<Tensor>& inputs, const Attributes& attributes,
                     const std::vector<OutputSpec>& outputs, const RunOptions& options) {
  const KernelCall call = make_call(domain, op, inputs, attributes, outputs, options);
  const KernelChoice choice = cpu_kernels().choose(call, options.kernel);
  return choice.kernel ? "" : join(choice.refusals);
}

Tensor random_tensor(DType dtype, Shape shape, double low, double high, uint32_t seed) {
  std::mt19937 engine(seed);
  Tensor tensor(DType::kF64, std::move(shape));
  for (double& element : tensor.mutable_data<double>()) {
    element = low + (high - low) * (engine() * 0x1p-32);
  }
  return dtype == DType::kF64 ? tensor : tensor.cast_to(dtype);
}

void expect_close(const Tensor& got, const Tensor& wanted, double rtol, double atol) {
  ASSERT_EQ(got.dtype(), wanted.dtype());
  ASSERT_EQ(got.shape(), wanted.shape());
  for (int64_t i = 0; i < wanted.size(); ++i) {
    const double a = got.at_as_double(i), b = wanted.at_as_double(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    ASSERT_LE(std::fabs(a - b), atol + rtol * std::fabs(b))
        << "element " << i << ": got " << a << ", wanted " << b;
  }
}

}  // namespace halfnote::test
