// Dropout and random numbers: CUDA against the CPU's reference, which draws the same words.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

TEST(CudaRandom, DropoutDropsTheSameElements) {
  const Tensor seed = integers({0x123456789abcdef}, {}), step = integers({41}, {});
  for (const DType dtype : kFloats) {
    for (const Shape& shape : kUglyShapes) {
      for (const float ratio : {0.0f, 0.1f, 0.5f, 1.0f}) {
        check({kOwn,
               "Dropout",
               {random(dtype, shape), seed, step},
               {{"ratio", ratio}, {"node", int64_t{7}}},
               {{dtype, shape}}});
      }
    }
  }
}

TEST(CudaRandom, InferenceDropoutIsTheIdentity) {
  for (const Shape& shape : kUglyShapes) {
    check({"",
           "Dropout",
           {random(DType::kF16, shape)},
           {},
           {{DType::kF16, shape}, {DType::kBool, shape}}});
    check({"", "Dropout", {random(DType::kF32, shape)}, {}, {{DType::kF32, shape}}});
  }
  EXPECT_THROW(on_device({"",
                          "Dropout",
                          {random(DType::kF32, {3}), random(DType::kF32, {}, 0.5, 0.6),
                           Tensor::scalar(true)},
                          {},
                          {{DType::kF32, {3}}},
                          {2}}),
               Error);
}

TEST(CudaRandom, NumbersAreThoseOfTheCpu) {
  const Tensor seed = integers({-5}, {}), step = integers({3}, {});
  for (const DType dtype : kFloats) {
    for (const Shape& shape : kUglyShapes) {
      const Tensor like = random(dtype, shape);
      const Attributes normal = {{"mean", 2.0f}, {"scale", 0.5f}, {"seed", 17.5f}};
      const Attributes uniform = {{"low", -3.0f}, {"high", 5.0f}, {"node", int64_t{2}}};
      check({"", "RandomNormalLike", {like}, normal, {{dtype, shape}}});
      check({"", "RandomUniformLike", {like}, uniform, {{dtype, shape}}});
      check({kOwn, "RandomNormal", {like, seed, step}, normal, {{dtype, shape}}});
      check({kOwn, "RandomUniform", {like, seed, step}, uniform, {{dtype, shape}}});
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
