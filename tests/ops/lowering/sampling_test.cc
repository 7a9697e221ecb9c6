// Gradients of ops that sample, unpool or select: GridSample and its kin, LpPool, TopK.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_ops.h"
#include "runtime/core/evaluate.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

using Ints = std::vector<int64_t>;
using Text = std::string;

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

// Found by halfnote-random: the gather behind it fell over place -1 of nothing.
TEST(SamplingGradient, GridSampleOfNoPointsIsRefused) {
  const Tensor grid = f64({1, 2, 2, 2}, 1, -0.9, 0.9);
  for (const char* padding : {"zeros", "border"}) {
    const GradientCase test{
        "empty", "GridSample", {{"padding_mode", Text(padding)}}, {f64({1, 2, 0, 3}, 2), grid}};
    try {
      rule_gradients(test, {f64({1, 2, 2, 2}, 3)});
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kModel);
      EXPECT_NE(std::string(error.what()).find("pictures of GridSample have no points"),
                std::string::npos)
          << error.what();
    }
  }
}

/// Boxes within the image, beyond its borders, and one that is turned around.
Tensor boxes(DType dtype) {
  return Tensor::of<double>({4, 4}, {0.3, 0.2, 4.1, 3.7, -2.5, 1.1, 3.3, 9.4, 2.2, 2.9, 2.6, 3.1,
                                     4.5, 3.5, 1.2, 0.7})
      .cast_to(dtype);
}

Attributes roi_attributes(const char* coordinates, int64_t ratio) {
  return {{"coordinate_transformation_mode", Text(coordinates)},
          {"output_height", int64_t{2}},
          {"output_width", int64_t{3}},
          {"sampling_ratio", ratio},
          {"spatial_scale", 0.8f}};
}

TEST(SamplingGradient, RoiAlign) {
  const Tensor image = f64({2, 2, 5, 6}, 1), images = ints({1, 0, 1, 1});
  for (const char* coordinates : {"half_pixel", "output_half_pixel"}) {
    for (int64_t ratio : {0, 1, 3}) {
      expect_gradient({coordinates,
                       "RoiAlign",
                       roi_attributes(coordinates, ratio),
                       {image, boxes(DType::kF64), images}});
    }
  }
}

TEST(SamplingGradient, RoiAlignOfTheLargestIsRefused) {
  Attributes attributes = roi_attributes("half_pixel", 2);
  attributes.set("mode", Text("max"));
  const GradientCase test{"max",
                          "RoiAlign",
                          attributes,
                          {f64({2, 2, 5, 6}, 1), boxes(DType::kF64), ints({1, 0, 1, 1})}};
  EXPECT_THROW(rule_gradients(test, {f64({4, 2, 2, 3}, 2)}), Error);
}

TEST(SamplingBody, RoiAlignGrad) {
  // Sums of up to 6 products for each of 4 regions, in two passes; the samples' places are rounded.
  constexpr double kSums = 64;
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const char* coordinates : {"half_pixel", "output_half_pixel"}) {
      for (int64_t ratio : {0, 1, 3}) {
        expect_body_agrees({coordinates,
                            "RoiAlignGrad",
                            roi_attributes(coordinates, ratio),
                            {random_tensor(dtype, {4, 2, 2, 3}, 1), boxes(dtype),
                             ints({1, 0, 1, 1}), ints({2, 2, 5, 6})},
                            1,
                            {3}},
                           kSums);
      }
    }
  }
}

TEST(SamplingGradient, DeformConv) {
  // (N, offset groups · 4 taps · 2, oH, oW): offsets up to 1.3 pixels, some beyond the border.
  const Attributes plain = {{"kernel_shape", Ints{2, 2}}};
  expect_gradient({"plain",
                   "DeformConv",
                   plain,
                   {f64({1, 2, 3, 4}, 1), f64({3, 2, 2, 2}, 2), f64({1, 8, 2, 3}, 3, -1.3, 1.3)},
                   {0, 1, 2}});
  const Attributes two = {{"offset_group", int64_t{2}}};
  expect_gradient({"all",
                   "DeformConv",
                   two,
                   {f64({2, 2, 3, 3}, 4), f64({2, 2, 2, 2}, 5), f64({2, 16, 2, 2}, 6, -1.3, 1.3),
                    f64({2}, 7), f64({2, 8, 2, 2}, 8)},
                   {0, 1, 2, 3, 4}});
  const Attributes wide = {{"strides", Ints{2, 1}},
                           {"pads", Ints{1, 0, 0, 2}},
                           {"dilations", Ints{1, 2}},
                           {"group", int64_t{2}},
                           {"offset_group", int64_t{2}}};
  expect_gradient({"groups",
                   "DeformConv",
                   wide,
                   {f64({1, 4, 3, 4}, 9), f64({4, 2, 2, 2}, 10), f64({1, 16, 2, 4}, 11, -1.3, 1.3),
                    Tensor{}, f64({1, 8, 2, 4}, 12)},
                   {0, 1, 2, 4}});
}

/// The results of a node on its own kernel, and of what it is lowered to.
void expect_lowered_like_kernel(const char* op, const Attributes& attributes,
                                const std::vector<Tensor>& operands) {
  Graph graph;
  NodeSpec spec{op, {}, attributes};
  std::vector<Tensor> inputs;
  for (const Tensor& operand : operands) {
    spec.inputs.emplace_back();
    if (!operand.defined()) continue;
    const ValueType type = ValueType::tensor(operand.dtype(), symbolic(operand.shape()));
    spec.inputs.back() =
        graph.add_input(graph.main(), "in" + std::to_string(spec.inputs.size()), type);
    inputs.push_back(operand);
  }
  const NodeId node = graph.create(std::move(spec), {"y"}, graph.end());
  infer_node(graph, node);
  graph.add_output(graph.main(), graph.output(node));
  const Tensor kernel = evaluate(graph, inputs)[0];
  ASSERT_TRUE(lower_graph(graph, infer_node));
  const Tensor lowered = evaluate(graph, inputs)[0];
  ASSERT_EQ(lowered.shape(), kernel.shape());
  ASSERT_EQ(lowered.dtype(), kernel.dtype());
  // Sums of up to 24 terms of size 1, in another order.
  const double bound = 24 * spacing(kernel.dtype());
  for (int64_t i = 0; i < kernel.size(); ++i) {
    ASSERT_NEAR(lowered.at_as_double(i), kernel.at_as_double(i), bound) << i;
  }
}

TEST(SamplingLowering, DeformConvIsThatOfTheKernel) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16}) {
    const auto numbers = [&](const Shape& shape, uint64_t seed, double size = 1) {
      return random_tensor(dtype, shape, seed, -size, size);
    };
    const Tensor x = numbers({2, 4, 4, 5}, 1);
    expect_lowered_like_kernel("DeformConv", {{"offset_group", int64_t{2}}},
                               {x, numbers({6, 4, 2, 2}, 2), numbers({2, 16, 3, 4}, 3, 1.5),
                                numbers({6}, 4), numbers({2, 8, 3, 4}, 5)});
    const Attributes wide = {{"strides", Ints{2, 1}},
                             {"pads", Ints{1, 0, 0, 2}},
                             {"dilations", Ints{1, 2}},
                             {"group", int64_t{2}},
                             {"offset_group", int64_t{2}}};
    expect_lowered_like_kernel("DeformConv", wide,
                               {x, numbers({6, 2, 2, 3}, 6), numbers({2, 24, 2, 3}, 7, 1.5)});
  }
}

TEST(SamplingGradient, DeformConvThatDoesNotFitIsRefused) {
  const GradientCase test{"offsets",
                          "DeformConv",
                          {},
                          {f64({1, 2, 4, 4}, 1), f64({2, 2, 2, 2}, 2), f64({1, 6, 3, 3}, 3)}};
  EXPECT_THROW(rule_gradients(test, {f64({1, 2, 3, 3}, 4)}), Error);
}

TEST(SamplingGradient, AffineGrid) {
  for (int64_t align : {0, 1}) {
    const Attributes attributes = {{"align_corners", align}};
    expect_gradient({"2-D", "AffineGrid", attributes, {f64({2, 2, 3}, 1), ints({2, 1, 3, 4})}});
    expect_gradient({"3-D", "AffineGrid", attributes, {f64({1, 3, 4}, 1), ints({1, 1, 2, 3, 2})}});
  }
}

// Found by halfnote-random: ONNX's function body squeezes the batch away where it is 1.
TEST(SamplingLowering, AffineGridOfOneConstantIsFolded) {
  constexpr const char* kText = R"(<ir_version: 10, opset_import: ["" : 23]>
g () => (float[1,1,3,2] y) <float[1,2,3] theta = {1, 0, 0.5, 0, 1, 0.25}, int64[4] size = {1, 1, 1, 3}> {
  y = AffineGrid <align_corners = 0> (theta, size)
})";
  const Model model = parse_model(kText, "grid");
  const Tensor grid = evaluate(model.graph, {})[0];
  ASSERT_EQ(grid.shape(), (Shape{1, 1, 3, 2}));
  const double want[] = {-2.0 / 3 + 0.5, 0.25, 0.5, 0.25, 2.0 / 3 + 0.5, 0.25};
  for (int64_t i = 0; i < 6; ++i) EXPECT_NEAR(grid.at_as_double(i), want[i], 1e-6) << "at " << i;
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
    for (const std::vector<int64_t>& pads :
         {std::vector<int64_t>{0, 0, 0, 0}, std::vector<int64_t>{1, 0, 0, 1}}) {
      expect_gradient({"ceil",
                       "LpPool",
                       {{"p", p},
                        {"kernel_shape", std::vector<int64_t>{2, 3}},
                        {"strides", std::vector<int64_t>{2, 2}},
                        {"pads", pads},
                        {"ceil_mode", int64_t{1}}},
                       {f64({2, 1, 5, 6}, 4)}});
    }
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
