// Gradient rules of the losses against central differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "compiler/ops/contract/contract.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

constexpr const char* kLosses[] = {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"};

TEST(LossGradient, AllForms) {
  for (const char* op : kLosses) {
    for (const char* reduction : {"none", "sum", "mean"}) {
      for (bool weighted : {false, true}) {
        for (bool ignores : {false, true}) {
          Attributes attributes = {{"reduction", std::string(reduction)}};
          if (ignores) attributes.set("ignore_index", int64_t{1});
          GradientCase test{reduction,
                            op,
                            attributes,
                            {f64({5, 3}, 1, -2, 2), Tensor::of<int64_t>({5}, {2, 1, 0, 2, 1})}};
          if (weighted) test.inputs.push_back(f64({3}, 2, 0.25, 2));
          expect_gradient(test);
          expect_gradient(test, Dims::kSymbolic);
        }
      }
    }
  }
}

TEST(LossGradient, Images) {
  for (const char* op : kLosses) {
    const GradientCase test{
        "(N, C, H, W)",
        op,
        {},
        {f64({2, 4, 3, 2}, 1, -2, 2), random_ints(DType::kI32, {2, 3, 2}, 2, 0, 4)}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(LossGradient, IgnoredLabelOutsideTheClasses) {
  for (const char* op : kLosses) {
    expect_gradient({"-100",
                     op,
                     {{"ignore_index", int64_t{-100}}},
                     {f64({4, 3}, 1, -2, 2), Tensor::of<int64_t>({4}, {2, -100, 0, -100})}});
  }
}

TEST(LossGradient, ThroughLogProb) {
  GradientCase test{"loss and log_prob",
                    "SoftmaxCrossEntropyLoss",
                    {},
                    {f64({3, 4}, 1, -2, 2), Tensor::of<int64_t>({3}, {0, 3, 2})},
                    {0},
                    2};
  expect_gradient(test, Dims::kSymbolic);
  test.silent = {0};
  expect_gradient(test);
}

TEST(LossGradient, TrainedClassWeightsAreRefused) {
  const GradientCase test{
      "weights",
      "SoftmaxCrossEntropyLoss",
      {},
      {f64({2, 3}, 1, -2, 2), Tensor::of<int64_t>({2}, {0, 2}), f64({3}, 2, 0.5, 1)},
      {0, 2}};
  try {
    gradient_graph(test, {Tensor::scalar<double>(1)}, Dims::kFixed);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("the class weights \"in2\" of a loss cannot be trained"));
  }
}

TEST(LossGradient, ProbabilitiesAsLabelsAreRefused) {
  const Model model = parse_model(
      "main (float[2,3] x, float[2,3] p) => (float l) { l = SoftmaxCrossEntropyLoss (x, p) }", "t");
  try {
    check_known_mistakes(model.graph, model.graph.first(model.graph.main()));
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_NE(error.hint_text().find("log_softmax"), std::string::npos) << error.what();
  }
}

TEST(LossGradient, EveryRuleIsTested) {
  const std::set<std::string> kTested = {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"};
  EXPECT_EQ(with_gradient(loss_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
