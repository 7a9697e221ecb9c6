// Operators that have small operands elsewhere, on more than 2^16 elements: in all, and in what one
// channel, group or line of results has.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

TEST(CudaLarge, BatchNorm) {
  Attributes relu;
  relu.set("activation", "Relu");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : {Shape{1, 2, 300, 301}, {300, 65, 7}}) {
      const Shape c{shape[1]};
      const Result full{dtype, shape}, sums{DType::kF32, c};
      const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2),
                   more = random(dtype, shape, -1, 1, 3), scale = random(DType::kF32, c, 0.5, 2, 4),
                   bias = random(DType::kF32, c, -1, 1, 5), mean = random(DType::kF32, c, 5, 6, 6),
                   inv_std = random(DType::kF32, c, 0.5, 2, 7);
      check({kOwn,
             "BatchNormalization",
             {x, scale, bias, mean, inv_std, more},
             relu,
             {full, sums, sums, sums, sums}});
      check({kOwn,
             "BatchNormalizationGrad",
             {dy, x, scale, mean, inv_std, more, x},
             {},
             {full, sums, sums, full}});
    }
  }
}

TEST(CudaLarge, GroupNorm) {
  const Shape shape{1, 4, 200, 131}, c{4};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2),
                 scale = random(dtype, c, 0.5, 2, 3), bias = random(dtype, c, -1, 1, 4);
    for (const int64_t groups : {1, 4}) {
      Attributes attributes;
      attributes.set("num_groups", groups);
      check({"", "GroupNormalization", {x, scale, bias}, attributes, {{dtype, shape}}});
      check({kOwn,
             "GroupNormalizationGrad",
             {dy, x, scale},
             attributes,
             {{dtype, shape}, {DType::kF32, c}, {DType::kF32, c}}});
    }
  }
}

/// Also of more results than 2^16.
TEST(CudaLarge, Pools) {
  const std::vector<int64_t> kernel{3, 2}, strides{2, 1}, pads{1, 0, 1, 1};
  const Attributes windows{{"kernel_shape", kernel}, {"strides", strides}, {"pads", pads}};
  const Shape of_x{1, 2, 301, 260}, of_y{1, 2, 151, 260};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor x = random(dtype, of_x), dy = random(dtype, of_y, -1, 1, 2);
    const Result y{dtype, of_y}, dx{dtype, of_x};
    check({"", "AveragePool", {x}, windows, {y}});
    check({kOwn, "AveragePoolGrad", {dy, x}, windows, {dx}});
    check({"", "MaxPool", {x}, windows, {y, {DType::kI64, of_y}}});
    check({kOwn, "MaxPoolGrad", {dy, x}, windows, {dx}});
    check({"", "GlobalAveragePool", {x}, {}, {{dtype, {1, 2, 1, 1}}}});
    check({"", "GlobalMaxPool", {x}, {}, {{dtype, {1, 2, 1, 1}}}});
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
