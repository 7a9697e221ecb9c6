// LayerNormalization, RMSNormalization and their gradients on CUDA: lines that a warp, a block or a
// loop takes, in packs and one by one, with and without sums around them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

/// The types that statistics have beside X.
DType wide_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

/// How a LayerNormalization is called: X, its scale and bias.
struct Norm {
  Tensor x, scale, bias;

  DType wide() const { return wide_of(x.dtype()); }
  int64_t width() const { return x.shape().back(); }
  Result like_x() const { return {x.dtype(), x.shape()}; }
  Call forward() const {
    const Shape line_shape = {x.shape()[0], 1};
    return {"",
            "LayerNormalization",
            {x, scale, bias},
            {},
            {like_x(), {wide(), line_shape}, {wide(), line_shape}}};
  }
  Call gradient() const {
    const std::vector<Tensor> saved = on_cpu(forward());
    return {kOwn,
            "LayerNormalizationGrad",
            {random(x.dtype(), x.shape(), -1, 1, 2), x, scale, saved[1], saved[2]},
            {},
            {like_x(), {wide(), {width()}}, {wide(), {width()}}}};
  }
  /// The same by RMSNormalization, whose Y has the type of the scale.
  Call rms() const {
    return {"", "RMSNormalization", {x, scale}, {}, {{scale.dtype(), x.shape()}}};
  }
  Call rms_gradient() const {
    return {kOwn,
            "RMSNormalizationGrad",
            {random(x.dtype(), x.shape(), -1, 1, 2), x, scale},
            {},
            {like_x(), {wide(), {width()}}}};
  }
  /// Of X and a residual, with their sum.
  Call of_sum(Call call) const {
    call.domain = kOwn;
    call.inputs.push_back(random(x.dtype(), x.shape(), -1, 1, 5));
    call.outputs.push_back(like_x());
    return call;
  }
  /// With the second part of dY, with what is added to dX, and with both.
  std::vector<Call> with_sums(const Call& call) const {
    const Tensor more = random(x.dtype(), x.shape(), -1, 1, 6),
                 added = random(x.dtype(), x.shape(), -1, 1, 7), none;
    std::vector<Call> all;
    const std::vector<Tensor> tails[] = {{more}, {none, added}, {more, added}};
    for (const std::vector<Tensor>& tail : tails) {
      all.push_back(call);
      all.back().inputs.insert(all.back().inputs.end(), tail.begin(), tail.end());
    }
    return all;
  }
  /// All of them.
  std::vector<Call> calls() const {
    std::vector<Call> all = {forward(), rms(), of_sum(forward()), of_sum(rms())};
    for (const Call& plain : {gradient(), rms_gradient()}) {
      all.push_back(plain);
      const std::vector<Call> more = with_sums(plain);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
};

Norm norm(DType dtype, const Shape& shape, DType scale_type, DType bias_type) {
  const Shape width = {shape.back()};
  return {random(dtype, shape), random(scale_type, width, 0.5, 2, 3),
          random(bias_type, width, -1, 1, 4)};
}

TEST(CudaLayerNorm, LinesOfEveryLength) {
  for (const DType dtype : kFloats) {
    const DType wide = wide_of(dtype);
    // Up to a pack, around what a warp holds and what a block holds. (Of two elements the gradient
    // is what rounding leaves of 0.)
    for (const int64_t width : {1, 7, 8, 33, 264, 512, 513, 1024, 1032, 4100, 8192, 8200}) {
      for (const Call& call : norm(dtype, {3, width}, wide, wide).calls()) {
        // Of one element the root of the square is the element: again what rounding leaves.
        if (width > 1 || call.op != "RMSNormalizationGrad") check(call);
      }
    }
  }
}

TEST(CudaLayerNorm, ManyLines) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : {Shape{2300, 8}, {0, 8}, {3, 0}}) {
      for (const Call& call : norm(dtype, shape, DType::kF32, DType::kF32).calls()) {
        if (element_count(shape) > 0 || call.op.ends_with("Grad")) check(call);
      }
    }
  }
}

TEST(CudaLayerNorm, ParametersOfOtherTypes) {
  for (const DType dtype : kStored) {
    for (const DType scale : kStored) {
      for (const DType bias : kStored) {
        for (const Call& call : norm(dtype, {5, 40}, scale, bias).calls()) check(call);
      }
    }
  }
  const Norm one = {random(DType::kF32, {4, 24}), random(DType::kF32, {1}),
                    random(DType::kF32, {24})};
  check(one.forward());
  check(one.of_sum(one.rms()));
}

TEST(CudaLayerNorm, GivesEachResultAlone) {
  for (const int64_t width : {48, 2000}) {
    const Norm of = norm(DType::kBF16, {9, width}, DType::kF32, DType::kF32);
    Call forward = of.forward();
    forward.inputs[2] = Tensor();
    forward.outputs.resize(1);
    check(forward);
    for (Call summed : {of.of_sum(of.forward()), of.of_sum(of.rms())}) {
      summed.outputs.back() = {};
      check(summed);
    }
    for (const Call& gradient : {of.gradient(), of.rms_gradient()}) {
      for (size_t i = 0; i < gradient.outputs.size(); ++i) {
        Call alone = gradient;
        for (size_t other = 0; other < alone.outputs.size(); ++other) {
          if (other != i) alone.outputs[other] = {};
        }
        check(alone);
      }
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
      for (const Call& one : call.calls()) {
        SCOPED_TRACE(std::string(one.op) + " of " + std::to_string(one.inputs.size()));
        EXPECT_LE(worst(one), 1e-5);
      }
    }
  }
}

TEST(CudaLayerNorm, AtAnyAddress) {
  if (test::tested_device() == "none") GTEST_SKIP();
  const auto device = test::open_tested_device();
  for (const DType dtype : kFloats) {
    for (const int64_t width : {64, 1600}) {
      const Norm of = norm(dtype, {5, width}, dtype, dtype);
      for (const Call& call : of.calls()) {
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

/// Squares beyond f32 (bf16 reaches as far), and what is beside them in the same block.
TEST(CudaLayerNorm, SquaresBeyondF32) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t width : {40, 1200}) {
      Norm of = norm(dtype, {9, width}, DType::kF32, DType::kF32);
      const Tensor large = random(dtype, {9, width}, -1e25, 1e25);
      const size_t line = static_cast<size_t>(width) * size_of(dtype);
      for (const size_t at : {size_t{2}, size_t{5}})
        std::copy_n(large.bytes() + at * line, line, of.x.mutable_bytes() + at * line);
      check(of.forward());
      check(of.rms());
      check(of.rms_gradient());
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
