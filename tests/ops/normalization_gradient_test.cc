// Gradient rules of the normalizations and of softmax against central differences.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

std::vector<Tensor> batch_operands(const Shape& shape) {
  const Shape channel = {shape[1]};
  return {f64(shape, 1, -1, 2), f64(channel, 2, 0.5, 1.5), f64(channel, 3), f64(channel, 4),
          f64(channel, 5, 0.5, 2)};
}

const Shape kBatches[] = {{5, 3}, {2, 3, 4}, {3, 2, 2, 3}};

TEST(NormalizationGradient, BatchNormalizationInTraining) {
  for (const Shape& shape : kBatches) {
    GradientCase test{to_string(shape),
                      "BatchNormalization",
                      {{"training_mode", int64_t{1}}, {"epsilon", 1e-3f}, {"momentum", 0.8f}},
                      batch_operands(shape),
                      {0, 1, 2},
                      3,
                      {1, 2}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(NormalizationGradient, BatchNormalizationOfOurs) {
  GradientCase test{"saved statistics",
                    "BatchNormalization",
                    {{"epsilon", 1e-3f}},
                    batch_operands({4, 3, 2}),
                    {0, 1, 2},
                    5,
                    {1, 2, 3, 4}};
  test.domain = kHalfnoteDomain;
  expect_gradient(test, Dims::kSymbolic);
}

TEST(NormalizationGradient, BatchNormalizationWithSumAndRelu) {
  for (const char* activation : {"", "Relu"}) {
    std::vector<Tensor> operands = batch_operands({4, 3, 2});
    operands.push_back(f64({4, 3, 2}, 6, -1, 1));
    GradientCase test{
        activation,  "BatchNormalization", {{"epsilon", 1e-3f}, {"activation", activation}},
        operands,    {0, 1, 2, 5},         5,
        {1, 2, 3, 4}};
    test.domain = kHalfnoteDomain;
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(NormalizationGradient, BatchNormalizationFrozen) {
  for (const Shape& shape : kBatches) {
    const GradientCase test{to_string(shape),
                            "BatchNormalization",
                            {{"epsilon", 1e-3f}},
                            batch_operands(shape),
                            {0, 1, 2, 3, 4}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(NormalizationGradient, GradientThroughRunningStatisticsIsRefused) {
  const GradientCase test{"running mean",
                          "BatchNormalization",
                          {{"training_mode", int64_t{1}}},
                          batch_operands({4, 3}),
                          {0},
                          3};
  EXPECT_THROW(rule_gradients(test, {f64({4, 3}, 1), f64({3}, 2), Tensor{}}), Error);
}

TEST(NormalizationGradient, LayerNormalization) {
  for (int64_t axis : {-1, 1, 0}) {
    const Shape shape = {3, 4, 5};
    const Shape scale(shape.begin() + (axis < 0 ? axis + 3 : axis), shape.end());
    GradientCase test{"axis " + std::to_string(axis),
                      "LayerNormalization",
                      {{"axis", axis}, {"epsilon", 1e-3f}},
                      {f64(shape, 1), f64(scale, 2, 0.5, 1.5), f64(scale, 3)},
                      {0, 1, 2}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
    test.name += ", no bias";
    test.inputs.pop_back();
    test.wrt = {0, 1};
    expect_gradient(test, Dims::kSymbolic);
  }
}

// Mean and InvStdDev of f64 are f32 in ONNX, so the central differences are those of the formulas.
TEST(NormalizationGradient, LayerNormalizationThroughItsStatistics) {
  constexpr int64_t kLines = 3, kWidth = 5;
  constexpr double kEpsilon = 1e-3, kStep = 1e-4;
  const Tensor x = f64({kLines, kWidth}, 1);
  const Tensor of_mean = Tensor::of<float>({kLines, 1}, {0.5f, -1.25f, 2.0f});
  const Tensor of_inv_std = Tensor::of<float>({kLines, 1}, {-0.75f, 1.5f, 0.25f});
  const auto value = [&](const Tensor& at, int64_t line, bool mean_too, bool inv_std_too) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < kWidth; ++i) sum += at.data<double>()[line * kWidth + i] / kWidth;
    for (int64_t i = 0; i < kWidth; ++i) {
      const double centred = at.data<double>()[line * kWidth + i] - sum;
      squares += centred * centred / kWidth;
    }
    return (mean_too ? of_mean.data<float>()[line] * sum : 0) +
           (inv_std_too ? of_inv_std.data<float>()[line] / std::sqrt(squares + kEpsilon) : 0);
  };
  const GradientCase test{"statistics",
                          "LayerNormalization",
                          {{"epsilon", static_cast<float>(kEpsilon)}},
                          {x, f64({kWidth}, 2)},
                          {0},
                          3};
  for (const auto& [mean_too, inv_std_too] :
       {std::pair(true, true), {true, false}, {false, true}}) {
    const Tensor got = rule_gradients(test, {Tensor{}, mean_too ? of_mean : Tensor{},
                                             inv_std_too ? of_inv_std : Tensor{}})
                           .front();
    for (int64_t i = 0; i < x.size(); ++i) {
      Tensor up = x.deep_copy(), down = x.deep_copy();
      up.mutable_data<double>()[i] += kStep;
      down.mutable_data<double>()[i] -= kStep;
      const double want = (value(up, i / kWidth, mean_too, inv_std_too) -
                           value(down, i / kWidth, mean_too, inv_std_too)) /
                          (2 * kStep);
      EXPECT_NEAR(got.data<double>()[i], want, 1e-6 * 4) << i;  // of the largest, some 4
    }
  }
}

// Scale and bias may be broadcast to the normalized shape, or to all of X.
TEST(NormalizationGradient, ParametersThatAreBroadcast) {
  const std::pair<Shape, Shape> kShapes[] = {{{1}, {4, 1}},
                                             {{5}, {1, 4, 5}},
                                             {{3, 1, 5}, {4, 5}},
                                             {{4, 1}, {3, 4, 1}},
                                             {{1, 4, 5}, {3, 1, 1}}};
  for (const auto& [scale, bias] : kShapes) {
    const Attributes axis = {{"axis", int64_t{1}}, {"epsilon", 1e-3f}};
    const std::string name = to_string(scale) + ", " + to_string(bias);
    const std::vector<Tensor> inputs = {f64({3, 4, 5}, 1), f64(scale, 2), f64(bias, 3)};
    expect_gradient({name, "LayerNormalization", axis, inputs, {0, 1, 2}});
    expect_gradient({name, "RMSNormalization", axis, {inputs[0], inputs[1]}, {0, 1}});
  }
}

TEST(NormalizationGradient, RmsNormalization) {
  for (int64_t axis : {-1, 1, 0}) {
    const Shape shape = {3, 4, 5};
    const Shape scale(shape.begin() + (axis < 0 ? axis + 3 : axis), shape.end());
    const GradientCase test{"axis " + std::to_string(axis),
                            "RMSNormalization",
                            {{"axis", axis}, {"epsilon", 1e-3f}},
                            {f64(shape, 1), f64(scale, 2, 0.5, 1.5)},
                            {0, 1}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(NormalizationGradient, GroupsAndInstances) {
  for (const Shape& shape : {Shape{3, 6}, Shape{2, 6, 5}, Shape{2, 6, 3, 2}}) {
    const std::vector<Tensor> inputs = {f64(shape, 1, -1, 2), f64({6}, 2, 0.5, 1.5), f64({6}, 3)};
    for (int64_t groups : {1, 2, 3}) {
      const GradientCase test{to_string(shape) + " in " + std::to_string(groups),
                              "GroupNormalization",
                              {{"num_groups", groups}, {"epsilon", 1e-3f}},
                              inputs,
                              {0, 1, 2}};
      expect_gradient(test);
      expect_gradient(test, Dims::kSymbolic);
    }
    if (shape.size() < 3) continue;
    const GradientCase test{
        to_string(shape), "InstanceNormalization", {{"epsilon", 1e-3f}}, inputs, {0, 1, 2}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(NormalizationGradient, LpNormalization) {
  for (int64_t p : {1, 2}) {
    for (int64_t axis : {-1, 0, 1}) {
      const GradientCase test{"p " + std::to_string(p) + ", axis " + std::to_string(axis),
                              "LpNormalization",
                              {{"p", p}, {"axis", axis}},
                              {f64({3, 4, 5}, 1)}};
      expect_gradient(test);
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

TEST(NormalizationGradient, LpNormalizationOfZerosIsZero) {
  const GradientCase test{"zeros", "LpNormalization", {}, {Tensor(DType::kF64, {2, 3})}};
  const Tensor dx = rule_gradients(test, {f64({2, 3}, 1)})[0];
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(dx.at_as_double(i), 0);
}

TEST(NormalizationGradient, Lrn) {
  for (int64_t size : {1, 2, 3, 4}) {
    for (const Shape& shape : {Shape{2, 5, 3}, Shape{1, 3, 2, 2}}) {
      const GradientCase test{"size " + std::to_string(size) + to_string(shape),
                              "LRN",
                              {{"size", size}, {"alpha", 0.5f}, {"beta", 0.7f}, {"bias", 1.5f}},
                              {f64(shape, 1)}};
      expect_gradient(test);
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

TEST(NormalizationGradient, MeanVarianceNormalization) {
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{0, 2, 3}, {1}, {0, 1, 2, 3}}) {
    const GradientCase test{std::to_string(axes.size()) + " axes",
                            "MeanVarianceNormalization",
                            {{"axes", axes}},
                            {f64({2, 3, 4, 2}, 1)}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(NormalizationGradient, Softmax) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (int64_t axis : {-1, 0, 1}) {
      const GradientCase test{
          "axis " + std::to_string(axis), op, {{"axis", axis}}, {f64({3, 4, 5}, 1, -2, 2)}};
      expect_gradient(test);
      expect_gradient(test, Dims::kSymbolic);
    }
    expect_gradient({"default axis", op, {}, {f64({3, 4}, 2, -2, 2)}});
  }
}

TEST(NormalizationGradient, HardmaxHasNoSlope) {
  expect_gradient({"last axis", "Hardmax", {}, {f64({3, 4}, 1, -2, 2)}});
}

TEST(NormalizationGradient, EveryRuleIsTested) {
  const std::set<std::string> kTested = {"BatchNormalization",
                                         "GroupNormalization",
                                         "Hardmax",
                                         "InstanceNormalization",
                                         "LRN",
                                         "LayerNormalization",
                                         "LogSoftmax",
                                         "LpNormalization",
                                         "MeanVarianceNormalization",
                                         "RMSNormalization",
                                         "Softmax",
                                         "ai.halfnote.BatchNormalization"};
  EXPECT_EQ(with_gradient(normalization_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
