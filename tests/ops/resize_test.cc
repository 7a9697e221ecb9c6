// Resize: gradients in all modes against central differences, the body of ResizeGrad against its
// kernel. The values of Resize are those of ONNX's node tests (tests/kernels).
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

using Text = std::string;

constexpr const char* kCoordinates[] = {"half_pixel",         "half_pixel_symmetric",
                                        "pytorch_half_pixel", "align_corners",
                                        "asymmetric",         "tf_crop_and_resize"};

struct Form {
  const char* name;
  Attributes attributes;
};

const Form kForms[] = {
    {"nearest", {{"mode", Text("nearest")}}},
    {"nearest ceil", {{"mode", Text("nearest")}, {"nearest_mode", Text("ceil")}}},
    {"nearest floor", {{"mode", Text("nearest")}, {"nearest_mode", Text("floor")}}},
    {"linear", {{"mode", Text("linear")}}},
    {"linear antialias", {{"mode", Text("linear")}, {"antialias", int64_t{1}}}},
    {"cubic", {{"mode", Text("cubic")}}},
    {"cubic excluding", {{"mode", Text("cubic")}, {"exclude_outside", int64_t{1}}}},
    {"cubic antialias",
     {{"mode", Text("cubic")}, {"antialias", int64_t{1}}, {"cubic_coeff_a", -0.5f}}},
};

Tensor floats(const std::vector<float>& numbers) {
  return Tensor::of<float>({static_cast<int64_t>(numbers.size())}, numbers);
}

Tensor image(const Shape& shape) { return random_tensor(DType::kF64, shape, 3); }

TEST(ResizeGradient, AllModesByScales) {
  for (const char* coordinates : kCoordinates) {
    for (const Form& form : kForms) {
      for (const std::vector<float>& scales :
           {std::vector<float>{1, 1, 1.7f, 0.6f}, {1, 1, 2, 3}}) {
        Attributes attributes = form.attributes;
        attributes.set("coordinate_transformation_mode", Text(coordinates));
        const Tensor roi = floats({0, 0, -0.2f, 0.1f, 1, 1, 0.8f, 1.1f});
        GradientCase test{Text(coordinates) + " " + form.name,
                          "Resize",
                          attributes,
                          {image({1, 2, 4, 5}), roi, floats(scales)}};
        test.constants = {1, 2};
        expect_gradient(test);
      }
    }
  }
}

TEST(ResizeGradient, BySizesAndAxes) {
  for (const char* policy : {"stretch", "not_larger", "not_smaller"}) {
    const GradientCase test{policy,
                            "Resize",
                            {{"mode", Text("linear")},
                             {"axes", std::vector<int64_t>{3, 2}},
                             {"keep_aspect_ratio_policy", Text(policy)}},
                            {image({2, 1, 4, 5}), Tensor{}, Tensor{}, ints({7, 9})}};
    expect_gradient(test);
  }
}

TEST(ResizeGradient, SymbolicBatch) {
  GradientCase test{"batch",
                    "Resize",
                    {{"mode", Text("linear")}},
                    {image({2, 1, 4, 1}), Tensor{}, floats({1, 1, 2, 1})}};
  test.constants = {2};
  expect_gradient(test, Dims::kSymbolic);
}

TEST(ResizeGradient, ComputedScalesAreRefused) {
  const GradientCase test{
      "computed", "Resize", {}, {image({1, 1, 2, 2}), Tensor{}, Tensor{}, ints({1, 1, 4, 4})},
      {0},        1,        {}, {3}};
  EXPECT_THROW(rule_gradients(test, {image({1, 1, 4, 4})}), Error);
}

TEST(ResizeBody, ResizeGrad) {
  // Sums of up to 5·6 products, in two passes.
  constexpr double kSums = 32;
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const char* coordinates : kCoordinates) {
      for (const Form& form : kForms) {
        Attributes attributes = form.attributes;
        attributes.set("coordinate_transformation_mode", Text(coordinates));
        attributes.set("scales", std::vector<float>{1, 1, 1.5f, 0.6f});
        attributes.set("roi", std::vector<float>{0, 0, -0.2f, 0.1f, 1, 1, 0.8f, 1.1f});
        expect_body_agrees({Text(coordinates) + " " + form.name,
                            "ResizeGrad",
                            attributes,
                            {random_tensor(dtype, {2, 1, 6, 3}, 1), ints({2, 1, 4, 5})},
                            1,
                            {1}},
                           kSums);
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::test
