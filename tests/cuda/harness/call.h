// A call of a CUDA kernel, written in a line: what the kernel tests are made of.
//
//   check({"", "Relu", {x}, {}, {{dtype, shape}}});
#pragma once

#include <string_view>
#include <vector>

#include "tests/cuda/harness/device_check.h"

namespace halfnote::cuda_emulated {

struct Result {
  DType dtype = DType::kUndefined;
  Shape shape;
};

/// One call: an op, its operands (an undefined tensor is absent) and results.
struct Call {
  std::string_view domain, op;
  std::vector<Tensor> inputs;
  Attributes attributes;
  std::vector<Result> outputs;
  std::vector<size_t> known = {};  // inputs known before the first step
};

inline constexpr std::string_view kOwn = "ai.halfnote";
inline constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
inline constexpr DType kStored[] = {DType::kF32, DType::kF16, DType::kBF16};
inline const Shape kUglyShapes[] = {{0}, {1}, {7}, {3, 5, 129}, {65537}};

/// Pseudo-random elements in [low, high), the same ones for the same seed.
Tensor random(DType dtype, Shape shape, double low = -2, double high = 2, uint32_t seed = 1);
Tensor integers(std::vector<int64_t> values, Shape shape);
/// A bit for each element of X: bytes (N, spatial…, C / 8).
Tensor bits_for(const Shape& x);
/// Elements of -8 and 8: what is added to normalized ones leaves none near 0, whose sign another
/// rounding changes.
Tensor far_from_zero(DType dtype, const Shape& shape);

/// The same call as kernels are asked. It refers to the call's attributes.
KernelCall kernel_call(const Call& call);
KernelCall kernel_call(Call&& call) = delete;
/// The results of the CPU's reference.
std::vector<Tensor> on_cpu(const Call& call);
/// The device's results.
std::vector<Tensor> on_device(const Call& call);
/// The row of the kernel that it takes; `none`.
std::string_view row_of(const Call& call);
/// Expects that the device has a kernel, and of it what the CPU's reference gives, in all orders of
/// threads.
void check(const Call& call);

}  // namespace halfnote::cuda_emulated
