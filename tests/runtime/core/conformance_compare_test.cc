// The judge of the conformance tests must see differences.
#include "tests/cases/conformance_compare.h"

#include <gtest/gtest.h>

#include <cmath>

namespace halfnote::cases {
namespace {

Tensor f32(std::initializer_list<float> numbers) {
  return Tensor::of<float>({static_cast<int64_t>(numbers.size())}, numbers);
}

TEST(ConformanceCompare, FloatsMayDifferByTheTolerance) {
  EXPECT_EQ(compare(f32({1, NAN, INFINITY}), f32({1.0009f, NAN, INFINITY}), {}), "");
  EXPECT_NE(compare(f32({1}), f32({1.002f}), {}), "");
  EXPECT_NE(compare(f32({0}), f32({1e-6f}), {}), "");
  EXPECT_NE(compare(f32({INFINITY}), f32({-INFINITY}), {}), "");
  EXPECT_NE(compare(f32({NAN}), f32({1}), {}), "");
}

TEST(ConformanceCompare, TypesShapesAndIntegersAreExact) {
  const Tensor ints = Tensor::of<int64_t>({2}, {100000, 2});
  EXPECT_EQ(compare(ints, ints, {}), "");
  EXPECT_NE(compare(Tensor::of<int64_t>({2}, {100001, 2}), ints, {}), "");
  EXPECT_NE(compare(ints.cast_to(DType::kI32), ints, {}), "");
  EXPECT_NE(compare(ints.reshaped({1, 2}), ints, {}), "");
  EXPECT_NE(compare(Tensor::strings({1}, {"a"}), Tensor::strings({1}, {"b"}), {}), "");
}

TEST(ConformanceCompare, LooksIntoContainers) {
  const Datum one = Datum::sequence({f32({1})}), two = Datum::sequence({f32({1}), f32({2})});
  EXPECT_EQ(compare(one, one, {}), "");
  EXPECT_NE(compare(two, one, {}), "");
  EXPECT_NE(compare(Datum::sequence({f32({3})}), one, {}), "");
  EXPECT_NE(compare(one, f32({1}), {}), "");
  EXPECT_NE(compare(Datum::optional({}), Datum::optional({f32({1})}), {}), "");
}

}  // namespace
}  // namespace halfnote::cases
