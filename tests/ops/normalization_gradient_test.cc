// Gradient rules of the normalizations and of softmax against central differences.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

Tensor f64(const Shape& shape, uint64_t seed, double low = -1, double high = 1) {
  return random_tensor(DType::kF64, shape, seed, low, high);
}

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

// Scale and bias may be broadcast to the normalized shape; their gradients have their own shapes.
TEST(NormalizationGradient, LayerNormalizationWithBroadcastScale) {
  const GradientCase test{"scale (1), bias (4, 1)",
                          "LayerNormalization",
                          {{"axis", int64_t{1}}},
                          {f64({3, 4, 5}, 1), f64({1}, 2), f64({4, 1}, 3)},
                          {0, 1, 2}};
  const Graph graph = gradient_graph(test, {f64({3, 4, 5}, 4)}, Dims::kFixed);
  ASSERT_EQ(graph.outputs().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(to_string(graph.value(graph.outputs()[i]).type),
              "double" + to_string(test.inputs[i].shape()));
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

TEST(NormalizationGradient, EveryRuleIsTested) {
  const std::set<std::string> kTested = {"BatchNormalization", "LayerNormalization", "LogSoftmax",
                                         "Softmax", "ai.halfnote.BatchNormalization"};
  EXPECT_EQ(with_gradient(normalization_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
