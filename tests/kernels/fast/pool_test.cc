// Our own pools against the reference: one to three dims, every way that windows can lie.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

struct PoolCase {
  const char* name;
  Shape x, y;
  std::vector<int64_t> kernel, strides, pads = {}, dilations = {};
};

const PoolCase kPools[] = {
    {"two_by_two", {2, 3, 8, 10}, {2, 3, 4, 5}, {2, 2}, {2, 2}},
    {"two_by_two_wide", {1, 2, 6, 68}, {1, 2, 3, 34}, {2, 2}, {2, 2}},
    {"two_by_two_many", {5, 31, 4, 4}, {5, 31, 2, 2}, {2, 2}, {2, 2}},
    {"odd_rows", {2, 3, 7, 10}, {2, 3, 3, 5}, {2, 2}, {2, 2}},
    {"odd_columns", {2, 3, 8, 7}, {2, 3, 4, 3}, {2, 2}, {2, 2}},
    {"odd_both", {3, 5, 7, 7}, {3, 5, 3, 3}, {2, 2}, {2, 2}},
    {"smallest", {1, 1, 2, 2}, {1, 1, 1, 1}, {2, 2}, {2, 2}},
    {"one_element", {2, 3, 1, 1}, {2, 3, 1, 1}, {1, 1}, {1, 1}},
    {"overlapping", {2, 2, 9, 11}, {2, 2, 5, 6}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
    {"without_pads", {3, 7, 13, 13}, {3, 7, 6, 6}, {3, 3}, {2, 2}},
    {"one_window", {5, 77, 3, 3}, {5, 77, 1, 1}, {3, 3}, {2, 2}},
    {"five_by_five", {2, 3, 16, 19}, {2, 3, 16, 19}, {5, 5}, {1, 1}, {2, 2, 2, 2}},
    {"five_in_small_planes", {3, 67, 4, 4}, {3, 67, 4, 4}, {5, 5}, {1, 1}, {2, 2, 2, 2}},
    {"wide_rows", {1, 1, 5, 300}, {1, 1, 3, 150}, {3, 3}, {2, 2}, {1, 1, 1, 0}},
    {"lopsided", {1, 2, 6, 9}, {1, 2, 4, 4}, {3, 2}, {1, 3}, {1, 2, 0, 1}},
    {"dilated", {1, 2, 9, 9}, {1, 2, 5, 7}, {3, 2}, {1, 1}, {0, 0, 0, 0}, {2, 2}},
    {"dilated_by_more", {2, 2, 12, 21}, {2, 2, 4, 6}, {3, 4}, {2, 3}, {1, 2, 1, 1}, {3, 2}},
    {"stride_three", {1, 1, 10, 20}, {1, 1, 3, 6}, {3, 4}, {3, 3}},
    {"stride_beyond_the_window", {2, 3, 11, 23}, {2, 3, 4, 5}, {2, 1}, {3, 5}},
    {"tall", {2, 3, 40, 1}, {2, 3, 20, 1}, {4, 1}, {2, 1}, {1, 0, 1, 0}},
    {"ceil", {1, 2, 7, 7}, {1, 2, 4, 4}, {2, 2}, {2, 2}},
    {"ceil_overlapping", {2, 3, 8, 8}, {2, 3, 4, 4}, {3, 3}, {2, 2}},
    {"whole_plane", {2, 3, 9, 14}, {2, 3, 1, 1}, {9, 14}, {1, 1}},
    {"windows_in_the_padding", {1, 2, 3, 3}, {1, 2, 5, 5}, {2, 2}, {2, 2}, {2, 2, 5, 5}},
    {"one_dim", {3, 5, 70}, {3, 5, 35}, {2}, {2}},
    {"one_dim_overlapping", {3, 5, 33}, {3, 5, 17}, {3}, {2}, {1, 1}},
    {"one_dim_one_element", {1, 1, 1}, {1, 1, 1}, {3}, {1}, {1, 1}},
    {"three_dims", {2, 3, 4, 6, 10}, {2, 3, 2, 3, 5}, {2, 2, 2}, {2, 2, 2}},
    {"three_dims_overlapping",
     {2, 2, 5, 7, 9},
     {2, 2, 3, 7, 5},
     {3, 3, 3},
     {2, 1, 2},
     {1, 1, 1, 1, 1, 1}},
    {"three_dims_lopsided",
     {1, 3, 4, 5, 6},
     {1, 3, 3, 5, 2},
     {3, 1, 2},
     {1, 1, 4},
     {0, 0, 1, 1, 0, 0},
     {1, 1, 2}},
    {"no_images", {0, 3, 8, 8}, {0, 3, 4, 4}, {2, 2}, {2, 2}},
};

Attributes pool_attributes(const PoolCase& c) {
  Attributes attributes{{"kernel_shape", c.kernel}, {"strides", c.strides}};
  if (!c.pads.empty()) attributes.set("pads", c.pads);
  if (!c.dilations.empty()) attributes.set("dilations", c.dilations);
  return attributes;
}

/// Few different values, so that windows have ties; zeros of either sign, NaN and infinities.
Tensor tied(DType type, const Shape& shape, double most) {
  Tensor x = random_tensor(DType::kF64, shape, -most, most, 1);
  auto values = x.mutable_data<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::round(values[i]);
    if (i % 37 == 5) values[i] = std::nan("");
    if (i % 41 == 7) values[i] = -std::numeric_limits<double>::infinity();
    if (i % 43 == 9) values[i] = std::numeric_limits<double>::infinity();
  }
  return x.cast_to(type);
}

/// Multiples of 1/8: their sums are exact in any order. No −0, which a sum would make 0.
Tensor eighths(DType type, const Shape& shape) {
  Tensor x = random_tensor(DType::kF64, shape, -8, 8, 2);
  for (double& value : x.mutable_data<double>()) value = std::round(value) / 8 + 0.0;
  return x.cast_to(type);
}

constexpr DType kSmallFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST(FastMaxPool, IsTheReferenceBitForBit) {
  const RunOptions fast{.kernel = "fast"};
  for (const PoolCase& c : kPools) {
    for (const DType type : kSmallFloats) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(short_name(type)));
      const Attributes attributes = pool_attributes(c);
      const OutputSpec y{type, c.y}, dx{type, c.x};
      for (const double most : {3.0, 0.6}) {
        const Tensor x = tied(type, c.x, most), dy = eighths(type, c.y);
        EXPECT_TRUE(identical(run_one("", "MaxPool", {x}, attributes, y, fast),
                              run_one("", "MaxPool", {x}, attributes, y)));
        EXPECT_TRUE(identical(run_one(kOwn, "MaxPoolGrad", {dy, x}, attributes, dx, fast),
                              run_one(kOwn, "MaxPoolGrad", {dy, x}, attributes, dx)));
      }
    }
  }
}

/// Where all elements of a window are −∞ the first of them has the gradient, not the padding.
TEST(FastMaxPool, PaddingIsBelowNegativeInfinity) {
  for (const DType type : kSmallFloats) {
    const Tensor x = Tensor::full(type, {2, 3, 6, 7}, -std::numeric_limits<double>::infinity()),
                 dy = eighths(type, {2, 3, 6, 7});
    const Attributes attributes{{"kernel_shape", std::vector<int64_t>{3, 3}},
                                {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
    const OutputSpec dx{type, x.shape()};
    EXPECT_TRUE(identical(run_one(kOwn, "MaxPoolGrad", {dy, x}, attributes, dx, {.kernel = "fast"}),
                          run_one(kOwn, "MaxPoolGrad", {dy, x}, attributes, dx)));
  }
}

TEST(FastMaxPool, AddsGradientsThatMeetWithinTheirRounding) {
  const Shape shape{2, 3, 16, 19};
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>{5, 5}},
                              {"pads", std::vector<int64_t>{2, 2, 2, 2}}};
  for (const DType type : kSmallFloats) {
    const Tensor x = random_tensor(type, shape, -1, 1, 1), dy = random_tensor(type, shape, -1, 1);
    const OutputSpec dx{type, shape};
    // Up to 25 gradients below 1 in f32, in two orders; then one rounding.
    expect_close(run_one(kOwn, "MaxPoolGrad", {dy, x}, attributes, dx, {.kernel = "fast"}),
                 run_one(kOwn, "MaxPoolGrad", {dy, x}, attributes, dx), 2 * unit_roundoff(type),
                 2 * 25 * 25 * 0x1p-24);
  }
}

TEST(FastMaxPool, SaysWhatItDoesNotTake) {
  const auto reason = [](const Shape& x, const Shape& y, int64_t kernel,
                         std::vector<OutputSpec> more = {}) {
    std::vector<OutputSpec> outputs{{DType::kF32, y}};
    outputs.insert(outputs.end(), more.begin(), more.end());
    return refusals("", "MaxPool", {Tensor(DType::kF32, x)},
                    {{"kernel_shape", std::vector<int64_t>{kernel}}}, outputs, {.kernel = "fast"});
  };
  EXPECT_NE(reason({1, 2, 100}, {1, 2, 36}, 65).find("windows too large"), std::string::npos);
  EXPECT_NE(reason({1, 2, 8}, {1, 2, 7}, 2, {{DType::kI64, {1, 2, 7}}}).find("indices"),
            std::string::npos);
}

TEST(FastAveragePool, AgreesWithTheReference) {
  const RunOptions fast{.kernel = "fast"};
  for (const PoolCase& c : kPools) {
    double terms = 1;
    for (const int64_t k : c.kernel) terms *= static_cast<double>(k);
    for (const DType type : kSmallFloats) {
      for (const int64_t include_pad : {0, 1}) {
        SCOPED_TRACE(std::string(c.name) + " " + std::string(short_name(type)) + " " +
                     std::to_string(include_pad));
        Attributes attributes = pool_attributes(c);
        attributes.set("count_include_pad", include_pad);
        const Tensor x = random_tensor(type, c.x, -1, 1, 1),
                     dy = random_tensor(type, c.y, -1, 1, 2);
        const Tensor shape =
            Tensor::of<int64_t>({static_cast<int64_t>(c.x.size())}, std::span<const int64_t>(c.x));
        const OutputSpec y{type, c.y}, dx{type, c.x};
        const std::vector<OutputSpec> outputs{y};
        if (c.x[0] == 0) {
          EXPECT_EQ(refusals("", "AveragePool", {x}, attributes, outputs, fast), "");
        }
        // A mean of so many numbers below 1, or their sum of gradients, in another order; then one
        // rounding.
        const double sums = 2 * terms * 0x1p-24, store = 2 * unit_roundoff(type);
        expect_close(run_one("", "AveragePool", {x}, attributes, y, fast),
                     run_one("", "AveragePool", {x}, attributes, y), store, sums);
        expect_close(run_one(kOwn, "AveragePoolGrad", {dy, shape}, attributes, dx, fast),
                     run_one(kOwn, "AveragePoolGrad", {dy, shape}, attributes, dx), store, sums);
      }
    }
  }
}

/// What is not finite stays in its own windows.
TEST(FastAveragePool, KeepsNonFiniteNumbersInTheirWindows) {
  const Shape shape{3, 5, 7, 9};
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>{3, 3}},
                              {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
  const Tensor x = tied(DType::kF32, shape, 3);
  const OutputSpec y{DType::kF32, shape};
  expect_close(run_one("", "AveragePool", {x}, attributes, y, {.kernel = "fast"}),
               run_one("", "AveragePool", {x}, attributes, y), 0x1p-22, 0x1p-22);
  const Tensor dims = Tensor::of<int64_t>({4}, std::span<const int64_t>(shape));
  expect_close(run_one(kOwn, "AveragePoolGrad", {x, dims}, attributes, y, {.kernel = "fast"}),
               run_one(kOwn, "AveragePoolGrad", {x, dims}, attributes, y), 0x1p-22, 0x1p-22);
}

}  // namespace
}  // namespace halfnote::test
