// Gradients of ops that sample, unpool or select: GridSample and its kin, LpPool, TopK.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

using Ints = std::vector<int64_t>;
using Text = std::string;

Tensor f64(const Shape& shape, uint64_t seed, double low = -1, double high = 1) {
  return random_tensor(DType::kF64, shape, seed, low, high);
}

TEST(SamplingGradient, GridSample) {
  const Tensor image = f64({2, 2, 3, 4}, 1), volume = f64({1, 2, 2, 3, 2}, 2);
  const Tensor grid = f64({2, 3, 2, 2}, 3, -1.4, 1.4), points = f64({1, 2, 2, 2, 3}, 4, -1.4, 1.4);
  for (const char* mode : {"linear", "cubic", "nearest"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (int64_t align : {0, 1}) {
        const Attributes attributes = {
            {"mode", Text(mode)}, {"padding_mode", Text(padding)}, {"align_corners", align}};
        const Text name = Text(mode) + " " + padding + (align != 0 ? " aligned" : "");
        expect_gradient({name, "GridSample", attributes, {image, grid}, {0, 1}});
        if (Text(mode) == "cubic") continue;  // 64 taps
        expect_gradient({name + " 3-D", "GridSample", attributes, {volume, points}, {0, 1}});
      }
    }
  }
}

TEST(SamplingGradient, AffineGrid) {
  for (int64_t align : {0, 1}) {
    const Attributes attributes = {{"align_corners", align}};
    expect_gradient({"2-D", "AffineGrid", attributes, {f64({2, 2, 3}, 1), ints({2, 1, 3, 4})}});
    expect_gradient({"3-D", "AffineGrid", attributes, {f64({1, 3, 4}, 1), ints({1, 1, 2, 3, 2})}});
  }
}

TEST(SamplingGradient, CenterCropPad) {
  const Attributes axes = {{"axes", Ints{2, 0}}};
  expect_gradient({"crop and pad", "CenterCropPad", {}, {f64({5, 3}, 1), ints({2, 6})}});
  expect_gradient({"axes", "CenterCropPad", axes, {f64({4, 2, 3}, 1), ints({5, 3})}});
}

TEST(SamplingGradient, Col2Im) {
  const Attributes wide = {{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 1}}};
  const Attributes apart = {{"dilations", Ints{1, 2}}};
  const Tensor image = ints({4, 5}), block = ints({2, 2});
  expect_gradient({"plain", "Col2Im", {}, {f64({2, 12, 12}, 1), image, block}});
  expect_gradient({"padded", "Col2Im", wide, {f64({2, 4, 15}, 1), image, block}});
  expect_gradient({"dilated", "Col2Im", apart, {f64({1, 4, 9}, 1), image, block}});
}

TEST(SamplingGradient, Col2ImThatDoesNotFitIsRefused) {
  const GradientCase test{
      "columns", "Col2Im", {}, {f64({1, 12, 11}, 1), ints({4, 5}), ints({2, 2})}};
  EXPECT_THROW(rule_gradients(test, {f64({1, 3, 4, 5}, 2)}), Error);
}

TEST(SamplingGradient, MaxUnpool) {
  const Attributes attributes = {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  const Tensor indices = Tensor::of<int64_t>({1, 2, 1, 2}, Ints{5, 2, 9, 14});
  const Tensor x = f64({1, 2, 1, 2}, 1);
  expect_gradient({"plain", "MaxUnpool", attributes, {x, indices}});
  expect_gradient({"larger", "MaxUnpool", attributes, {x, indices, ints({1, 2, 3, 5})}});
}

TEST(SamplingGradient, LpPool) {
  for (int64_t p : {1, 2, 3}) {
    const Attributes plain = {{"kernel_shape", Ints{2, 3}}, {"p", p}};
    const Attributes padded = {{"kernel_shape", Ints{2, 2}},
                               {"strides", Ints{2, 1}},
                               {"pads", Ints{1, 0, 1, 1}},
                               {"p", p}};
    expect_gradient({"plain", "LpPool", plain, {f64({2, 2, 4, 5}, 1)}});
    expect_gradient({"padded", "LpPool", padded, {f64({1, 2, 4, 5}, 2)}});
    expect_gradient({"global", "GlobalLpPool", {{"p", p}}, {f64({2, 3, 4, 2}, 3)}});
    expect_gradient({"global", "GlobalLpPool", {{"p", p}}, {f64({2, 3, 4}, 3)}}, Dims::kSymbolic);
  }
}

TEST(SamplingGradient, TopK) {
  for (int64_t axis : {-1, 0, 1}) {
    for (int64_t largest : {0, 1}) {
      const Attributes attributes = {{"axis", axis}, {"largest", largest}};
      GradientCase test{"values", "TopK", attributes, {f64({3, 4, 5}, 1), ints({2})}, {0}, 2};
      expect_gradient(test);
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

}  // namespace
}  // namespace halfnote::test
