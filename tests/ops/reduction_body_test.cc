// Bodies of the pooling gradients against their kernels: overlapping and dilated windows, ties,
// windows that reach beyond the input.
#include <gtest/gtest.h>

#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"

namespace halfnote::test {
namespace {

constexpr DType kReductionTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
constexpr double kReductionSums = 8;  // a sum of at most nine windows, in two orders

struct PoolBody {
  const char* name;
  Shape x, y;
  Attributes attributes;
};

using Ints = std::vector<int64_t>;

const PoolBody kPoolBodies[] = {
    {"apart", {2, 3, 6, 4}, {2, 3, 3, 2}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}},
    {"overlapping", {1, 2, 7, 5}, {1, 2, 5, 3}, {{"kernel_shape", Ints{3, 3}}}},
    {"padded",
     {2, 1, 7, 5},
     {2, 1, 4, 3},
     {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}}},
    {"asymmetric",
     {2, 1, 7, 5},
     {2, 1, 4, 2},
     {{"kernel_shape", Ints{2, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{0, 1, 1, 0}}}},
    {"a rest that no window reaches",
     {1, 2, 8},
     {1, 2, 2},
     {{"kernel_shape", Ints{3}}, {"strides", Ints{3}}}},
    {"ceil_mode",
     {1, 2, 8, 6},
     {1, 2, 4, 3},
     {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"ceil_mode", int64_t{1}}}},
    {"dilated", {2, 2, 9}, {2, 2, 5}, {{"kernel_shape", Ints{3}}, {"dilations", Ints{2}}}},
    {"same_upper",
     {1, 2, 7, 5},
     {1, 2, 4, 3},
     {{"kernel_shape", Ints{3, 2}},
      {"strides", Ints{2, 2}},
      {"auto_pad", std::string("SAME_UPPER")}}},
    {"3-D",
     {1, 2, 4, 3, 5},
     {1, 2, 2, 2, 3},
     {{"kernel_shape", Ints{2, 2, 3}}, {"strides", Ints{2, 1, 1}}}},
};

TEST(ReductionBody, MaxPoolGrad) {
  for (DType dtype : kReductionTypes) {
    for (const PoolBody& pool : kPoolBodies) {
      const Tensor grad = random_tensor(dtype, pool.y, 1);
      expect_body_agrees(
          {pool.name, "MaxPoolGrad", pool.attributes, {grad, random_tensor(dtype, pool.x, 2)}},
          kReductionSums);
      const Tensor ties = random_ints(dtype, pool.x, 3, 0, 3);
      expect_body_agrees({pool.name, "MaxPoolGrad", pool.attributes, {grad, ties}}, kReductionSums);
    }
  }
}

TEST(ReductionBody, MaxPoolThatKeepsItsTaps) {
  for (DType dtype : kReductionTypes) {
    for (const PoolBody& pool : kPoolBodies) {
      for (const char* activation : {"", "Relu"}) {
        Attributes attributes = pool.attributes;
        if (*activation != 0) attributes.set("activation", std::string(activation));
        const BodyCase forward{
            pool.name, "MaxPool", attributes, {random_ints(dtype, pool.x, 3, -2, 3)}, 2};
        expect_body_identical(forward);
        const Tensor taps = run_kernel(forward)[1];
        expect_body_agrees({pool.name,
                            "MaxPoolTapsGrad",
                            pool.attributes,
                            {random_tensor(dtype, pool.y, 1), taps, ints(pool.x)},
                            1,
                            {2}},
                           kReductionSums);
      }
    }
  }
}

/// With the signs of a scale, and the gradient through the normalization before it.
TEST(ReductionBody, MaxPoolBesideANormalization) {
  for (DType dtype : kReductionTypes) {
    const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    for (const PoolBody& pool : kPoolBodies) {
      const Shape channel = {pool.x[1]};
      Tensor signs(DType::kF64, channel);
      for (size_t c = 0; c < signs.mutable_data<double>().size(); ++c)
        signs.mutable_data<double>()[c] = c == 0 ? -2 : c == 1 ? 0.5 : 0;
      const Tensor scale = signs.cast_to(wide);
      const Tensor x = random_ints(dtype, pool.x, 3, -2, 3);
      const BodyCase forward{pool.name, "MaxPool", pool.attributes, {x, scale}, 2};
      expect_body_identical(forward);
      const Tensor taps = run_kernel(forward)[1];
      const auto numbers = [&](int seed, double least, double most) {
        return random_tensor(wide, channel, seed, least, most);
      };
      expect_body_agrees({pool.name,
                          "NormalizedMaxPoolGrad",
                          pool.attributes,
                          {random_tensor(dtype, pool.y, 1), taps, x, scale, numbers(4, -0.1, 0.1),
                           numbers(5, 1, 2), numbers(6, -3, 3), numbers(7, -3, 3)}},
                         kReductionSums);
    }
  }
}

TEST(ReductionBody, AveragePoolGrad) {
  for (DType dtype : kReductionTypes) {
    for (const PoolBody& pool : kPoolBodies) {
      for (int64_t include_pad : {0, 1}) {
        Attributes attributes = pool.attributes;
        attributes.set("count_include_pad", include_pad);
        expect_body_agrees({pool.name,
                            "AveragePoolGrad",
                            attributes,
                            {random_tensor(dtype, pool.y, 1), ints(pool.x)},
                            1,
                            {1}},
                           kReductionSums);
      }
    }
  }
}

TEST(ReductionBody, ReduceSum) {
  for (DType dtype : kReductionTypes) {
    const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    for (const Ints& axes : {Ints{0}, Ints{-1, 0}, Ints{}}) {
      for (int64_t keep : {0, 1}) {
        const Attributes attributes = {
            {"axes", axes}, {"keepdims", keep}, {"out_dtype", static_cast<int64_t>(wide)}};
        const Tensor x = random_tensor(dtype, {5, 3, 4}, 1);
        expect_body_agrees({"sum", "ReduceSum", attributes, {x}}, kReductionSums);
      }
    }
  }
}

TEST(ReductionBody, EveryBodyIsTested) {
  // ResizeGrad in resize_test.cc, RoiAlignGrad in lowering/sampling_test.cc.
  const std::set<std::string> kTested = {
      "AveragePoolGrad",       "MaxPool",   "MaxPoolGrad", "MaxPoolTapsGrad",
      "NormalizedMaxPoolGrad", "ReduceSum", "ResizeGrad",  "RoiAlignGrad"};
  EXPECT_EQ(with_body(reduction_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
