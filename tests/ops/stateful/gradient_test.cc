// Gradient rules of dropout.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

TEST(StatefulGradient, DropoutOfOurs) {
  for (float ratio : {0.0f, 0.3f, 1.0f}) {
    GradientCase test{"ratio",
                      "Dropout",
                      {{"ratio", ratio}, {"node", int64_t{2}}},
                      {f64({3, 7}, 1), Tensor::scalar<int64_t>(5), Tensor::scalar<int64_t>(9)}};
    test.domain = kHalfnoteDomain;
    test.computed = {1, 2};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(StatefulGradient, InferenceDropoutIsTheIdentity) {
  const Tensor ratio = Tensor::scalar<double>(0.4);
  expect_gradient({"no mode", "Dropout", {}, {f64({5}, 1), ratio}});
  expect_gradient({"mode false", "Dropout", {}, {f64({5}, 1), ratio, Tensor::scalar<bool>(false)}});
}

TEST(StatefulGradient, TrainingDropoutIsRefused) {
  const GradientCase test{"mode true",
                          "Dropout",
                          {},
                          {f64({5}, 1), Tensor::scalar<double>(0.4), Tensor::scalar<bool>(true)}};
  EXPECT_THROW(rule_gradients(test, {f64({5}, 2)}), Error);
}

TEST(StatefulGradient, EveryRuleIsTested) {
  // The random ones give none: tests/session/random_test.cc.
  const std::set<std::string> kTested = {"Dropout",
                                         "RandomNormal",
                                         "RandomNormalLike",
                                         "RandomUniform",
                                         "RandomUniformLike",
                                         "ai.halfnote.Dropout",
                                         "ai.halfnote.RandomNormal",
                                         "ai.halfnote.RandomUniform"};
  EXPECT_EQ(with_gradient(stateful_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
