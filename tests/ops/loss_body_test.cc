// Bodies of the loss gradients against their kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"

namespace halfnote::test {
namespace {

constexpr DType kLossTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
constexpr double kLossSums = 16;  // Σ w over some dozen labels

struct Scores {
  const char* name;
  Shape scores, labels;
};
const Scores kScores[] = {{"rows", {7, 5}, {7}},
                          {"one class", {3, 1}, {3}},
                          {"images", {2, 3, 4, 5}, {2, 4, 5}},
                          {"no rows", {0, 5}, {0}}};

/// Calls `body(dL, labels, weights or absent, attributes)` for every reduction and option.
template <class Body>
void for_each_form(DType dtype, const Scores& s, Body&& body) {
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  for (const char* reduction : {"none", "sum", "mean"}) {
    const Shape loss = std::string_view(reduction) == "none" ? s.labels : Shape{};
    const Tensor dl = random_tensor(wide, loss, 1, 0.5, 2);
    for (DType index : {DType::kI64, DType::kI32}) {
      for (bool ignores : {false, true}) {
        for (bool weighted : {false, true}) {
          Attributes attributes = {{"reduction", std::string(reduction)}};
          if (ignores) attributes.set("ignore_index", int64_t{0});
          body(dl, random_ints(index, s.labels, 2, 0, s.scores[1]),
               weighted ? random_tensor(dtype, {s.scores[1]}, 3, 0.25, 2) : Tensor{}, attributes);
        }
      }
    }
  }
}

TEST(LossBody, SoftmaxCrossEntropyLossGrad) {
  for (DType dtype : kLossTypes) {
    for (const Scores& s : kScores) {
      for_each_form(dtype, s, [&](Tensor dl, Tensor labels, Tensor weights, Attributes attributes) {
        std::vector<Tensor> inputs = {dl, random_tensor(dtype, s.scores, 4, -5, 0), labels};
        if (weights.defined()) inputs.push_back(weights);
        expect_body_agrees({s.name, "SoftmaxCrossEntropyLossGrad", attributes, inputs}, kLossSums);
      });
    }
  }
}

TEST(LossBody, SoftmaxCrossEntropyLossWithGradient) {
  for (DType dtype : kLossTypes) {
    for (const Scores& s : kScores) {
      for_each_form(dtype, s, [&](Tensor dl, Tensor labels, Tensor weights, Attributes attributes) {
        attributes.set("out_dtype", static_cast<int64_t>(dtype));
        std::vector<Tensor> inputs = {random_tensor(dtype, s.scores, 4, -5, 5), labels, dl};
        if (weights.defined()) inputs.push_back(weights);
        expect_body_agrees({s.name, "SoftmaxCrossEntropyLossWithGradient", attributes, inputs, 2},
                           kLossSums);
      });
    }
  }
}

TEST(LossBody, PaddingBehindTheClasses) {
  const Scores kPadded[] = {{"rows", {7, 8}, {7}},
                            {"one class", {3, 8}, {3}},
                            {"no padding", {5, 5}, {5}},
                            {"images", {2, 6, 4, 5}, {2, 4, 5}},
                            {"no rows", {0, 8}, {0}}};
  for (DType dtype : kLossTypes) {
    for (const Scores& s : kPadded) {
      const int64_t classes = s.name == std::string_view("one class") ? 1 : 5;
      const Scores counted = {s.name, {0, classes}, s.labels};
      for_each_form(dtype, counted, [&](Tensor dl, Tensor labels, Tensor w, Attributes attributes) {
        attributes.set("out_dtype", static_cast<int64_t>(dtype));
        attributes.set("classes", classes);
        std::vector<Tensor> inputs = {random_tensor(dtype, s.scores, 4, -5, 5), labels, dl};
        if (w.defined()) inputs.push_back(w);
        expect_body_agrees({s.name, "SoftmaxCrossEntropyLossWithGradient", attributes, inputs, 2},
                           kLossSums);
      });
    }
  }
}

TEST(LossBody, NegativeLogLikelihoodLossGrad) {
  for (DType dtype : kLossTypes) {
    for (const Scores& s : kScores) {
      for_each_form(dtype, s, [&](Tensor dl, Tensor labels, Tensor weights, Attributes attributes) {
        attributes.set("out_dtype", static_cast<int64_t>(dtype));
        expect_body_agrees({s.name,
                            "NegativeLogLikelihoodLossGrad",
                            attributes,
                            {dl, labels, weights, ints(s.scores)},
                            1,
                            {3}},
                           kLossSums);
      });
    }
  }
}

TEST(LossBody, IgnoredLabelsOutsideTheClasses) {
  const Tensor labels = Tensor::of<int64_t>({4}, {1, -100, 2, -100});
  const Attributes attributes = {{"ignore_index", int64_t{-100}}};
  expect_body_agrees({"labels -100",
                      "SoftmaxCrossEntropyLossGrad",
                      attributes,
                      {Tensor::scalar<float>(2), random_tensor(DType::kF32, {4, 3}, 1, -3, 0),
                       labels, random_tensor(DType::kF32, {3}, 2, 0.5, 1)}},
                     kLossSums);
}

TEST(LossBody, AllLabelsIgnoredGiveZero) {
  const Tensor labels = Tensor::of<int64_t>({2}, {-1, -1});
  const BodyCase call{
      "all ignored",
      "SoftmaxCrossEntropyLossGrad",
      {{"ignore_index", int64_t{-1}}},
      {Tensor::scalar<float>(1), random_tensor(DType::kF32, {2, 3}, 1, -3, 0), labels}};
  for (const Tensor& dx : {run_kernel(call)[0], run_body(call)[0]}) {
    for (int64_t i = 0; i < dx.size(); ++i) EXPECT_EQ(dx.at_as_double(i), 0);
  }
}

/// Equal scores, labels outside the classes, infinities and NaN; with the five highest and without.
TEST(LossBody, CountCorrect) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const Tensor odd = Tensor::of<float>(
      {6, 3}, {1, 1, 0, 1, 1, 0, -inf, -inf, -inf, nan, 0, 1, 0, inf, inf, 2, 3, nan});
  const Tensor wide = Tensor::of<float>({3, 7}, {1, 2,   3, 4, 5, 6, 7,  //
                                                 5, 5,   5, 5, 5, 5, 5,  //
                                                 1, nan, 1, 9, 9, 9, 1});
  for (DType dtype : kLossTypes) {
    for (DType index : {DType::kI64, DType::kI32}) {
      for (bool ignores : {false, true}) {
        Attributes attributes;
        if (ignores) attributes.set("ignore_index", int64_t{2});
        const auto agrees = [&](const char* name, const Attributes& with, const Tensor& scores,
                                const Tensor& labels) {
          for (const int outputs : {2, 3})
            expect_body_agrees({name, "CountCorrect", with, {scores, labels}, outputs}, 0);
        };
        for (const Scores& s : kScores) {
          const Tensor labels = random_ints(index, s.labels, 2, -1, s.scores[1] + 1);
          const Tensor few = random_ints(DType::kI64, s.scores, 3, -2, 2).cast_to(dtype);
          for (const Tensor& scores : {few, random_tensor(dtype, s.scores, 4, -5, 5)})
            agrees(s.name, attributes, scores, labels);
          Attributes padded = attributes;
          padded.set("classes", (s.scores[1] + 1) / 2);
          agrees(s.name, padded, few, labels);
        }
        const Tensor labels = Tensor::of<int64_t>({6}, {0, 1, 0, 2, 1, 1}).cast_to(index);
        agrees("odd scores", attributes, odd.cast_to(dtype), labels);
        for (int64_t label = 0; label < 7; ++label)
          agrees("seven", attributes, wide.cast_to(dtype), Tensor::full(index, {3}, label));
      }
    }
  }
}

TEST(LossBody, EveryBodyIsTested) {
  const std::set<std::string> kTested = {"NegativeLogLikelihoodLossGrad", "CountCorrect",
                                         "SoftmaxCrossEntropyLossWithGradient",
                                         "SoftmaxCrossEntropyLossGrad"};
  EXPECT_EQ(with_body(loss_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
