// Runs one kernel on tensors: what the kernel tests are written with.
//
//   const Tensor y = run_one("", "Relu", {x});
//   const auto [y, mask] = …run_kernel("", "Dropout", {x}, {}, {{DType::kF32, {3}}, {DType::kBool,
//   {3}}});
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "kernels/kernel.h"

namespace halfnote::test {

/// The domain of our own operators.
inline constexpr std::string_view kOwn = "ai.halfnote";

/// The elements of a tensor.
template <class T>
std::vector<T> values(const Tensor& tensor) {
  const auto data = tensor.data<T>();
  return {data.begin(), data.end()};
}

/// Type and shape of an output; an undefined type stands for an output that is not asked for.
struct OutputSpec {
  DType dtype = DType::kUndefined;
  Shape shape;
};

struct RunOptions {
  /// Only rows whose name starts with this.
  std::string_view kernel = "reference";
  int threads = 1;
  /// Integer and bool inputs are known before the first step, as the shape arithmetic of a model
  /// is.
  bool constants = true;
  /// Float inputs that are known too (scales of a Resize).
  std::vector<size_t> known = {};
  /// Runs again with 2 and 3 threads and, where the kernel allows it, in place, and expects the
  /// same bytes.
  bool check_repeats = true;
  /// Holds the CUDA kernel against the reference too, if there is one: more runs.
  bool check_device = true;
};

/// Runs a kernel of the CPU. An undefined tensor is an absent input. Throws Error(kUnsupported)
/// with the reasons if no kernel accepts the call. Outputs and workspace are filled with rubbish
/// beforehand.
std::vector<Tensor> run_kernel(std::string_view domain, std::string_view op,
                               const std::vector<Tensor>& inputs, const Attributes& attributes,
                               const std::vector<OutputSpec>& outputs,
                               const RunOptions& options = {});

/// run_kernel() for one output, by default of the type and shape of the first input.
Tensor run_one(std::string_view domain, std::string_view op, const std::vector<Tensor>& inputs,
               const Attributes& attributes = {}, OutputSpec output = {},
               const RunOptions& options = {});

/// Why no kernel accepts the call: `name: reason; …`. Empty if one does.
std::string refusals(std::string_view domain, std::string_view op,
                     const std::vector<Tensor>& inputs, const Attributes& attributes,
                     const std::vector<OutputSpec>& outputs, const RunOptions& options = {});

/// Pseudo-random elements in [low, high), the same ones for the same seed, rounded to `dtype`.
Tensor random_tensor(DType dtype, Shape shape, double low, double high, uint32_t seed = 1);

/// Expects the same type and shape and |got − wanted| ≤ atol + rtol·|wanted|; NaN equals NaN,
/// infinities are equal.
void expect_close(const Tensor& got, const Tensor& wanted, double rtol, double atol);

}  // namespace halfnote::test
