// The cross-entropy losses: values, reductions, ignored labels, and what a bad label says.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "exact.h"

namespace halfnote::test {
namespace {

const Tensor kScores = Tensor::of<float>({3, 4}, {1, 2, 3, 4, 0, 0, 0, 0, -1, 5, -1, 2});

Tensor loss_of(const Tensor& scores, const Tensor& labels, const Tensor& weights = {},
               const Attributes& attributes = {}, Shape shape = {}) {
  return run_one("", "SoftmaxCrossEntropyLoss", {scores, labels, weights}, attributes,
                 {scores.dtype(), std::move(shape)});
}

double log_prob(int64_t row, int64_t label) {
  double sum = 0;
  for (int64_t i = 0; i < 4; ++i) sum += std::exp(kScores.at_as_double(row * 4 + i));
  return kScores.at_as_double(row * 4 + label) - std::log(sum);
}

TEST(CrossEntropy, Reduces) {
  const Tensor labels = Tensor::of<int64_t>({3}, {3, 0, 2}),
               weights = Tensor::of<float>({4}, {0.5f, 1, 2, 4});
  const double a = -log_prob(0, 3), b = -log_prob(1, 0), c = -log_prob(2, 2);
  const Attributes none{{"reduction", std::string("none")}}, sum{{"reduction", std::string("sum")}};
  const Tensor each = loss_of(kScores, labels, {}, none, {3});
  EXPECT_NEAR(each.at_as_double(0), a, 1e-6);
  EXPECT_NEAR(each.at_as_double(1), b, 1e-6);
  EXPECT_NEAR(each.at_as_double(2), c, 1e-6);
  EXPECT_NEAR(loss_of(kScores, labels, {}, sum).at_as_double(0), a + b + c, 1e-6);
  EXPECT_NEAR(loss_of(kScores, labels).at_as_double(0), (a + b + c) / 3, 1e-6);
  EXPECT_NEAR(loss_of(kScores, labels, weights).at_as_double(0), (4 * a + 0.5 * b + 2 * c) / 6.5,
              1e-6);
}

TEST(CrossEntropy, IgnoresALabel) {
  const Attributes ignore{{"ignore_index", int64_t{-1}}};
  const Tensor labels = Tensor::of<int32_t>({3}, {3, -1, 2});
  EXPECT_NEAR(loss_of(kScores, labels, {}, ignore).at_as_double(0),
              -(log_prob(0, 3) + log_prob(2, 2)) / 2, 1e-6);
  const Tensor none = Tensor::of<int32_t>({3}, {-1, -1, -1});
  EXPECT_TRUE(std::isnan(loss_of(kScores, none, {}, ignore).at_as_double(0)));
  const Attributes sum{{"ignore_index", int64_t{-1}}, {"reduction", std::string("sum")}};
  EXPECT_EQ(loss_of(kScores, none, {}, sum).at_as_double(0), 0);
}

TEST(CrossEntropy, NamesABadLabel) {
  for (const int64_t bad : {int64_t{4}, int64_t{-1}, int64_t{1} << 40}) {
    try {
      loss_of(kScores, Tensor::of<int64_t>({3}, {0, bad, 2}));
      FAIL() << "label " << bad << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData);
      EXPECT_NE(error.problem().find(std::to_string(bad)), std::string::npos);
      EXPECT_EQ(error.expectation(), "0 to 3");
    }
  }
  const Attributes ignore{{"ignore_index", int64_t{9}}};
  EXPECT_THROW(loss_of(kScores, Tensor::of<int64_t>({3}, {0, 8, 9}), {}, ignore), Error);
  EXPECT_THROW(run_one("ai.halfnote", "NegativeLogLikelihoodLossGrad",
                       {Tensor::scalar(1.0f), Tensor::of<int64_t>({3}, {0, 7, 1}), {}, {}}, {},
                       {DType::kF32, {3, 4}}),
               Error);
}

TEST(CrossEntropy, IsOneRoundingIn16Bits) {
  const Tensor labels =
      Tensor::of<int64_t>({64}, std::span<const int64_t>(std::vector<int64_t>(64, 3)));
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const Tensor scores = random_tensor(type, {64, 10}, -4, 4, 1);
    const auto out = run_kernel("", "SoftmaxCrossEntropyLoss", {scores, labels}, {},
                                {{type, {}}, {type, {64, 10}}});
    const auto wide =
        run_kernel("", "SoftmaxCrossEntropyLoss", {scores.cast_to(DType::kF64), labels}, {},
                   {{DType::kF64, {}}, {DType::kF64, {64, 10}}});
    for (size_t o = 0; o < 2; ++o)
      expect_close(out[o].cast_to(DType::kF64), wide[o], 1.01 * unit_roundoff(type), 1e-7);
  }
}

TEST(CrossEntropy, MayGiveItsLossInF32) {
  const Tensor labels = Tensor::of<int64_t>({3}, {3, 0, 2}), scores = kScores.cast_to(DType::kBF16);
  const Tensor loss =
      run_one("", "SoftmaxCrossEntropyLoss", {scores, labels}, {}, {DType::kF32, {}});
  EXPECT_NEAR(loss.at_as_double(0), -(log_prob(0, 3) + log_prob(1, 0) + log_prob(2, 2)) / 3, 1e-6);
}

TEST(CrossEntropy, SurvivesExtremeScores) {
  const Tensor scores = Tensor::of<float>({1, 3}, {3e38f, -3e38f, 0});
  EXPECT_EQ(loss_of(scores, Tensor::of<int64_t>({1}, {0})).at_as_double(0), 0);
  EXPECT_NEAR(loss_of(scores, Tensor::of<int64_t>({1}, {2})).at_as_double(0), 3e38, 1e32);
}

TEST(CrossEntropy, RejectsWhatDoesNotFit) {
  EXPECT_THROW(loss_of(kScores, Tensor(DType::kI64, {4})), Error);
  EXPECT_THROW(loss_of(kScores, Tensor(DType::kI64, {3}), Tensor(DType::kF32, {3})), Error);
  EXPECT_THROW(
      loss_of(kScores, Tensor(DType::kI64, {3}), {}, {{"reduction", std::string("median")}}),
      Error);
  EXPECT_THROW(loss_of(kScores, Tensor(DType::kI64, {3}), {}, {}, {3}), Error);
  EXPECT_THROW(loss_of(kScores, Tensor(DType::kI16, {3})), Error);
}

}  // namespace
}  // namespace halfnote::test
