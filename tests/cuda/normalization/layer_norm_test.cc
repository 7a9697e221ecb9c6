// LayerNormalization and its gradient on CUDA: lines that a warp, a block or a loop takes, in packs
// and one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cuda/call.h"

namespace halfnote::cuda_emulated {
namespace {

/// How a LayerNormalization is called: X, its scale and bias.
struct Norm {
  Tensor x, scale, bias;

  DType wide() const { return x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32; }
  int64_t width() const { return x.shape().back(); }
  Call forward() const {
    const Shape line_shape = {x.shape()[0], 1};
    return {"",
            "LayerNormalization",
            {x, scale, bias},
            {},
            {{x.dtype(), x.shape()}, {wide(), line_shape}, {wide(), line_shape}}};
  }
  Call gradient() const {
    const std::vector<Tensor> saved = on_cpu(forward());
    return {kOwn,
            "LayerNormalizationGrad",
            {random(x.dtype(), x.shape(), -1, 1, 2), x, scale, saved[1], saved[2]},
            {},
            {{x.dtype(), x.shape()}, {wide(), {width()}}, {wide(), {width()}}}};
  }
};

Norm norm(DType dtype, const Shape& shape, DType scale_type, DType bias_type) {
  const Shape width = {shape.back()};
  return {random(dtype, shape), random(scale_type, width, 0.5, 2, 3),
          random(bias_type, width, -1, 1, 4)};
}

TEST(CudaLayerNorm, LinesOfEveryLength) {
  for (const DType dtype : kFloats) {
    const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
    // Up to a pack, around what a warp holds and what a block holds. (Of two elements the gradient
    // is what rounding leaves of 0.)
    for (const int64_t width : {1, 7, 8, 33, 264, 512, 513, 1024, 1032, 4100, 8192, 8200}) {
      const Norm call = norm(dtype, {3, width}, wide, wide);
      check(call.forward());
      check(call.gradient());
    }
  }
}

TEST(CudaLayerNorm, ManyLines) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : {Shape{2300, 8}, {0, 8}, {3, 0}}) {
      const Norm call = norm(dtype, shape, DType::kF32, DType::kF32);
      if (element_count(shape) > 0) check(call.forward());
      check(call.gradient());
    }
  }
}

TEST(CudaLayerNorm, ParametersOfOtherTypes) {
  for (const DType dtype : kStored) {
    for (const DType scale : kStored) {
      for (const DType bias : kStored) {
        const Norm call = norm(dtype, {5, 40}, scale, bias);
        check(call.forward());
        check(call.gradient());
      }
    }
  }
  const Norm one = {random(DType::kF32, {4, 24}), random(DType::kF32, {1}),
                    random(DType::kF32, {24})};
  check(one.forward());
}

TEST(CudaLayerNorm, GivesEachResultAlone) {
  for (const int64_t width : {48, 2000}) {
    const Norm of = norm(DType::kBF16, {9, width}, DType::kF32, DType::kF32);
    Call forward = of.forward();
    forward.inputs[2] = Tensor();
    forward.outputs.resize(1);
    check(forward);
    for (size_t i = 0; i < 3; ++i) {
      Call alone = of.gradient();
      for (size_t other = 0; other < 3; ++other) {
        if (other != i) alone.outputs[other] = {};
      }
      check(alone);
    }
  }
}

/// The largest difference from the CPU's in units of the largest element, of all results.
double worst(const Call& call) {
  const std::vector<Tensor> wanted = on_cpu(call), got = on_device(call);
  double most = 0;
  for (size_t k = 0; k < wanted.size(); ++k) {
    double largest = 0, apart = 0;
    for (int64_t i = 0; i < wanted[k].size(); ++i) {
      largest = std::max(largest, std::fabs(wanted[k].at_as_double(i)));
      apart = std::max(apart, std::fabs(wanted[k].at_as_double(i) - got[k].at_as_double(i)));
    }
    most = std::max(most, apart / largest);
  }
  return most;
}

TEST(CudaLayerNorm, F32IsNearTheSumsInF64) {
  if (test::tested_device() == "none") GTEST_SKIP();
  for (const int64_t width : {7, 768, 1024, 3072, 8192}) {
    for (const double offset : {0.0, 30.0}) {
      SCOPED_TRACE(std::to_string(width) + " around " + std::to_string(offset));
      Norm call = norm(DType::kF32, {40, width}, DType::kF32, DType::kF32);
      call.x = random(DType::kF32, {40, width}, offset - 2, offset + 2);
      EXPECT_LE(worst(call.forward()), 1e-5);
      EXPECT_LE(worst(call.gradient()), 1e-5);
    }
  }
}

TEST(CudaLayerNorm, AtAnyAddress) {
  if (test::tested_device() == "none") GTEST_SKIP();
  const auto device = test::open_tested_device();
  for (const DType dtype : kFloats) {
    for (const int64_t width : {64, 1600}) {
      const Norm of = norm(dtype, {5, width}, dtype, dtype);
      for (const Call& call : {of.forward(), of.gradient()}) {
        const KernelCall asked = kernel_call(call);
        const KernelChoice choice = device->kernels().choose(asked);
        ASSERT_TRUE(choice.kernel);
        const auto got = test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs,
                                          {.offset = size_of(dtype)});
        const auto wanted = on_cpu(call);
        for (size_t i = 0; i < got.size(); ++i) {
          test::expect_near(got[i], wanted[i],
                            std::string(call.op) + " output " + std::to_string(i));
        }
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
