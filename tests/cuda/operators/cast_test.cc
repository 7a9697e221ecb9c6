// Cast and CastLike between all types on a device: one rounding, as on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

std::vector<DType> castable() {
  std::vector<DType> types(std::begin(kAllTypes), std::end(kAllTypes));
  types.insert(types.end(), std::begin(kFewBits), std::end(kFewBits));
  return types;
}

/// Floats around the ends of every integer type and 16-bit float, ties among them.
Tensor steep(DType dtype) {
  Tensor tensor(DType::kF64, {4 * 160});
  auto to = tensor.mutable_data<double>();
  for (size_t i = 0; i < to.size(); i += 4) {
    const double power = std::ldexp(1.0, static_cast<int>(i / 4) - 80);
    to[i] = power;
    to[i + 1] = -power * (1 + 0x1p-4 + 0x1p-20);
    to[i + 2] = power * (1 + 0x1p-8);
    to[i + 3] = -power * (2 - 0x1p-11);
  }
  return tensor.cast_to(dtype);
}

TEST(CudaCast, BetweenAllTypes) {
  for (const DType from : castable()) {
    for (const DType to : castable()) {
      check_exactly({"", "Cast", {ugly(from, {333})}, {}, {{to, {333}}}});
      check({"", "Cast", {ugly(from, {0})}, {}, {{to, {0}}}});
    }
  }
}

TEST(CudaCast, OfFloatsRoundsOnce) {
  for (const DType from : kFloats) {
    const Tensor x = steep(from);
    for (const DType to : castable()) check_exactly({"", "Cast", {x}, {}, {{to, x.shape()}}});
  }
}

TEST(CudaCast, ListensToItsAttributes) {
  for (const DType from : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Tensor x = steep(from);
    for (const DType to : kFewBits) {
      for (const std::string mode : {"up", "down", "nearest"}) {
        const Attributes how = {{"saturate", int64_t{0}}, {"round_mode", mode}};
        check_exactly({"", "Cast", {x}, how, {{to, x.shape()}}});
      }
    }
  }
}

TEST(CudaCast, LikeAnother) {
  for (const DType from : {DType::kF32, DType::kU16, DType::kI64}) {
    for (const DType to : {DType::kF64, DType::kI8, DType::kF8E5M2}) {
      for (const Shape& shape : kUglyShapes)
        check({"", "CastLike", {ugly(from, shape), Tensor(to, {1})}, {}, {{to, shape}}});
    }
  }
}

TEST(CudaCast, ComplexNumbersHaveNoKernel) {
  for (const auto& [from, to] : {std::pair{DType::kC64, DType::kF32}, {DType::kF32, DType::kC64}})
    EXPECT_EQ(row_of({"", "Cast", {Tensor(from, {1})}, {}, {{to, {1}}}}), "none");
}

}  // namespace
}  // namespace halfnote::cuda_emulated
