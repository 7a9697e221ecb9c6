// Operators on a device whose elements come from shapes, indices or lengths: EyeLike, Range,
// OneHot, ReverseSequence.
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

TEST(CudaGenerate, EyeLike) {
  for (const DType dtype : kAllTypes) {
    for (const Shape& shape : {Shape{1, 1}, {5, 7}, {7, 5}, {0, 3}, {3, 0}, {300, 301}}) {
      if (element_count(shape) > 2000 && dtype != DType::kBF16) continue;
      for (const int64_t k : {int64_t{0}, int64_t{2}, int64_t{-3}, int64_t{1} << 40}) {
        check({"", "EyeLike", {Tensor(DType::kI32, shape)}, {{"k", k}}, {{dtype, shape}}});
      }
    }
  }
}

TEST(CudaGenerate, RangesOfAllNumbers) {
  for (const DType dtype : kAllTypes) {
    for (const int64_t count : {0, 1, 7, 65537}) {
      if (count > 2000 && dtype != DType::kI16 && dtype != DType::kF32) continue;
      for (const double step : {3.0, 0.25, -2.0}) {
        const Tensor start = Tensor::scalar_of(dtype, 5), delta = Tensor::scalar_of(dtype, step);
        check_as_on_cpu({"", "Range", {start, start, delta}, {}, {{dtype, {count}}}});
        if (dtype == DType::kBool) continue;
        check({"", "Range", {start, start, delta}, {}, {{dtype, {count}}}, {0, 1, 2}});
      }
    }
  }
}

/// Indices in and out of a depth of 5, halves and the largest too where there are.
Tensor indices_of(DType dtype, const Shape& shape) {
  if (is_integer(dtype)) return ugly(dtype, shape);
  Tensor tensor = random(DType::kF64, shape, is_float(dtype) ? -8 : 0, 8);
  auto to = tensor.mutable_data<double>();
  for (size_t i = 5; i < to.size(); i += 7)
    to[i] = i % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : 1e30;
  return tensor.cast_to(dtype);
}

TEST(CudaGenerate, OneHotByAnyIndex) {
  for (const DType index : kAllTypes) {
    for (const DType value : {DType::kF64, DType::kF32, DType::kBF16, DType::kU8}) {
      const Tensor values = random(value, {2}, 1, 9);
      for (const int64_t axis : {0, 1, -1}) {
        Shape shape = {3, 33};
        shape.insert(axis < 0 ? shape.end() : shape.begin() + axis, 5);
        check({"",
               "OneHot",
               {indices_of(index, {3, 33}), integers({5}, {}), values},
               {{"axis", axis}},
               {{value, shape}},
               {1}});
      }
    }
  }
}

TEST(CudaGenerate, OneHotOfUglySizes) {
  for (const DType index : {DType::kI64, DType::kF32, DType::kU8}) {
    for (const Shape& shape : {Shape{}, {0}, {1}, {20001}}) {
      Shape result = shape;
      result.push_back(4);
      const Tensor values = random(DType::kF16, {2});
      check({"",
             "OneHot",
             {indices_of(index, shape), integers({4}, {1}), values},
             {},
             {{DType::kF16, result}},
             {1}});
    }
  }
}

TEST(CudaGenerate, WhatIsKnownBefore) {
  const Tensor values = ugly(DType::kI16, {3, 33});
  check({"", "Constant", {}, {{"value", values}}, {{DType::kI16, {3, 33}}}});
  check({"", "Constant", {}, {{"value", Tensor(DType::kF32, {0})}}, {{DType::kF32, {0}}}});
  check({"", "Constant", {}, {{"value_float", 2.5f}}, {{DType::kF32, {}}}});
  check({"", "Constant", {}, {{"value_ints", std::vector<int64_t>{1, 7}}}, {{DType::kI64, {2}}}});
  const Tensor x = ugly(DType::kF16, {3, 0, 5});
  check({"", "Shape", {x}, {}, {{DType::kI64, {3}}}});
  check({"", "Shape", {x}, {{"start", int64_t{-2}}, {"end", int64_t{9}}}, {{DType::kI64, {2}}}});
  check({"", "Size", {x}, {}, {{DType::kI64, {}}}});
  int64_t there = 0;
  for (int64_t i = 0; i < values.size(); ++i) there += values.at_as_int(i) != 0;
  check({"", "NonZero", {values}, {}, {{DType::kI64, {2, there}}}, {0}});
  EXPECT_EQ(row_of({"", "NonZero", {values}, {}, {{DType::kI64, {2, there}}}}), "none");
}

Call reverse_call(const Tensor& x, std::vector<int64_t> lengths, int64_t time_axis) {
  const auto count = static_cast<int64_t>(lengths.size());
  return {"",
          "ReverseSequence",
          {x, integers(std::move(lengths), {count})},
          {{"time_axis", time_axis}, {"batch_axis", 1 - time_axis}},
          {{x.dtype(), x.shape()}}};
}

TEST(CudaGenerate, ReverseSequence) {
  for (const DType dtype : kAllTypes) {
    for (const int64_t time_axis : {0, 1}) {
      const auto shape = [&](int64_t steps, int64_t batch, int64_t inner) {
        return time_axis == 0 ? Shape{steps, batch, inner} : Shape{batch, steps, inner};
      };
      check(reverse_call(ugly(dtype, shape(9, 4, 3)), {9, 0, 1, 6}, time_axis));
      check(reverse_call(ugly(dtype, shape(1, 1, 1)), {1}, time_axis));
      check(reverse_call(ugly(dtype, shape(0, 2, 5)), {0, 0}, time_axis));
      check(reverse_call(ugly(dtype, shape(5, 0, 7)), {}, time_axis));
      if (dtype == DType::kI8) {
        check(reverse_call(ugly(dtype, shape(700, 2, 50)), {699, 700}, time_axis));
      }
    }
  }
}

TEST(CudaGenerate, LengthOutOfRangeIsBadData) {
  for (const int64_t length : {-1, 4}) {
    const Tensor x = random(DType::kF32, {3, 2, 5});
    EXPECT_THROW(on_device(reverse_call(x, {1, length}, 0)), Error);
    EXPECT_THROW(on_cpu(reverse_call(x, {1, length}, 0)), Error);
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
