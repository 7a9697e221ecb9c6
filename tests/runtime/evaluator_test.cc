// Evaluation counts every sample once, whatever the batch; accuracy and loss from scores.
#include "runtime/train/evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compiler/ir/text.h"
#include "tests/runtime/tiny_run.h"
#include "tests/runtime/train/support.h"

namespace halfnote {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ScoreCounts counts_of(const Classification& kind, const Tensor& scores, const Tensor& labels,
                      int64_t rows) {
  const auto counts = count_scores(kind, scores, labels, rows, ScoreLoss::kCompute);
  EXPECT_TRUE(counts.has_value());
  return counts.value_or(ScoreCounts{});
}

TEST(CountScores, RanksWithTiesAndNan) {
  const Tensor scores =
      Tensor::of<float>({5, 6}, {9,    1, 2,    3, 4, 5,    // label 0: rank 0
                                 9,    1, 2,    3, 4, 5,    // label 1: rank 5
                                 7,    7, 0,    0, 0, 0,    // label 1: tie, rank 1
                                 kNan, 0, 0,    0, 0, 0,    // label 0: never right
                                 1,    2, kNan, 0, 0, 0});  // label 1: NaN is above
  const Tensor labels = Tensor::of<int64_t>({5}, {0, 1, 1, 0, 1});
  const ScoreCounts counts = counts_of({}, scores, labels, 5);
  EXPECT_EQ(counts.labels, 5);
  EXPECT_EQ(counts.top1, 1);
  EXPECT_EQ(counts.top5, 3);
  const ScoreCounts first = counts_of({}, scores, labels, 1);
  EXPECT_EQ(first.labels, 1);
  EXPECT_EQ(first.top5, 1);
}

TEST(CountScores, TopFiveOfFewClassesIsAlwaysRight) {
  const Tensor scores = Tensor::of<float>({1, 3}, {3, 2, 1});
  EXPECT_EQ(counts_of({}, scores, Tensor::of<int64_t>({1}, {2}), 1).top5, 1);
}

TEST(CountScores, FindsTheClassesAtEitherPlace) {
  // (N, C, T) and (N, T, C) of the same scores.
  const Tensor first = Tensor::of<float>({1, 3, 2}, {9, 0, 0, 9, 1, 1});
  const Tensor last = Tensor::of<float>({1, 2, 3}, {9, 0, 1, 0, 9, 1});
  const Tensor labels = Tensor::of<int64_t>({1, 2}, {0, 1});
  EXPECT_EQ(counts_of({}, first, labels, 1).top1, 2);
  EXPECT_EQ(counts_of({}, last, labels, 1).top1, 2);
  EXPECT_EQ(counts_of({}, last, labels.reshaped({2}), 1).top1, 2);  // flattened labels
  // Where both fit, the graph decides.
  const Tensor square = Tensor::of<float>({1, 2, 2}, {0, 9, 0, 9});
  const Tensor ones = Tensor::of<int64_t>({1, 2}, {1, 1});
  EXPECT_EQ(counts_of({.class_last = true}, square, ones, 1).top1, 2);
  EXPECT_EQ(counts_of({.class_last = false}, square, ones, 1).top1, 0);
}

TEST(CountScores, CountsTheRealSamplesOfFlattenedScores) {
  // (N·T, C) scores against (N, T) labels; the second sample fills up the batch.
  const Tensor scores = Tensor::of<float>({4, 2}, {9, 0, 0, 9, 9, 0, 9, 0});
  const Tensor labels = Tensor::of<int64_t>({2, 2}, {0, 1, 0, 0});
  EXPECT_EQ(counts_of({}, scores, labels, 1).labels, 2);
  EXPECT_EQ(counts_of({}, scores, labels, 2).labels, 4);
  EXPECT_EQ(counts_of({}, scores, labels, 2).top1, 4);
}

TEST(CountScores, LeavesIgnoredLabelsOut) {
  const Tensor scores = Tensor::of<float>({2, 2}, {0, 1, 0, 1});
  const Tensor labels = Tensor::of<int64_t>({2}, {-100, 1});
  Classification kind;
  kind.ignore_index = -100;
  EXPECT_EQ(counts_of(kind, scores, labels, 2).labels, 1);
  EXPECT_FALSE(count_scores({}, scores, labels, 2, ScoreLoss::kSkip));  // outside the classes
}

TEST(CountScores, LossIsThatOfSoftmax) {
  const Tensor scores = Tensor::of<float>({1, 3}, {1000, 1001, 999});
  const double sum = std::exp(-1.0) + 1 + std::exp(-2.0);
  const double loss = counts_of({}, scores, Tensor::of<int64_t>({1}, {0}), 1).loss;
  EXPECT_NEAR(loss, std::log(sum) + 1, 1e-12);
}

TEST(CountScores, LossOfProbabilitiesIsTheirLogarithm) {
  const Tensor scores = Tensor::of<float>({1, 2}, {0.25f, 0.75f});
  const Classification kind = {.probabilities = true};
  EXPECT_NEAR(counts_of(kind, scores, Tensor::of<int64_t>({1}, {0}), 1).loss, std::log(4.0), 1e-12);
}

TEST(CountScores, RefusesShapesThatDoNotBelongTogether) {
  const Tensor scores = Tensor::of<float>({2, 2}, {0, 1, 0, 1});
  EXPECT_FALSE(count_scores({}, scores, Tensor::of<int64_t>({3}, {0, 0, 0}), 2, ScoreLoss::kSkip));
  EXPECT_FALSE(count_scores({}, Tensor::of<float>({2}, {0, 1}), Tensor::of<int64_t>({2}, {0, 0}), 2,
                            ScoreLoss::kSkip));
}

std::optional<Classification> classification_of(const std::string& body,
                                                const std::string& outputs) {
  const std::string text =
      "g (float[N,3] x, int64[N] y, float[3] w) => (" + outputs + ") {\n" + body + "\n}\n";
  return find_classification(parse_graph(text, "test"));
}

TEST(FindClassification, FollowsWhatOnlyMovesNumbers) {
  const auto direct = classification_of(
      "s = Relu (x)\n loss = SoftmaxCrossEntropyLoss <ignore_index: int = 7> (s, y)", "loss, s");
  ASSERT_TRUE(direct);
  EXPECT_EQ(direct->scores, "s");
  EXPECT_EQ(direct->output, 1u);
  EXPECT_EQ(direct->labels, "y");
  EXPECT_EQ(direct->ignore_index, 7);
  EXPECT_TRUE(direct->plain_mean);
  EXPECT_FALSE(direct->class_last);
  const auto around = classification_of(
      "s = Relu (x)\n c = Cast <to: int = 10> (s)\n l = LogSoftmax (c)\n z = Cast <to: int = 7> "
      "(y)\n"
      "loss = NegativeLogLikelihoodLoss (l, z)",
      "loss, s");
  ASSERT_TRUE(around);
  EXPECT_EQ(around->labels, "y");
}

TEST(FindClassification, FindsTheProbabilitiesOfALossThatHoldsTheirSoftmax) {
  const auto direct = classification_of(
      "z = Relu (x)\n p = Softmax (z)\n loss = SoftmaxCrossEntropyLoss (z, y)", "loss, p");
  ASSERT_TRUE(direct);
  EXPECT_EQ(direct->scores, "p");
  EXPECT_TRUE(direct->probabilities);
  EXPECT_TRUE(direct->plain_mean);
  // Moved on both ways.
  const auto moved = classification_of(
      "z = Relu (x)\n p = Softmax (z)\n q = Identity (p)\n m = Identity (z)\n loss = "
      "SoftmaxCrossEntropyLoss (m, y)",
      "loss, q");
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->scores, "q");
  EXPECT_TRUE(moved->probabilities);
  // Not what is computed otherwise.
  EXPECT_FALSE(classification_of(
      "z = Relu (x)\n p = Sigmoid (z)\n loss = SoftmaxCrossEntropyLoss (z, y)", "loss, p"));
}

TEST(FindClassification, KnowsWhenTheLossIsMore) {
  const auto weighted =
      classification_of("s = Relu (x)\n loss = SoftmaxCrossEntropyLoss (s, y, w)", "loss, s");
  ASSERT_TRUE(weighted);
  EXPECT_FALSE(weighted->plain_mean);
  const auto summed = classification_of(
      "s = Relu (x)\n loss = SoftmaxCrossEntropyLoss <reduction: string = \"sum\"> (s, y)",
      "loss, s");
  ASSERT_TRUE(summed);
  EXPECT_FALSE(summed->plain_mean);
  const auto regularized = classification_of(
      "s = Relu (x)\n ce = SoftmaxCrossEntropyLoss (s, y)\n loss = Mul (ce, ce)", "loss, s");
  ASSERT_TRUE(regularized);
  EXPECT_FALSE(regularized->plain_mean);
}

TEST(FindClassification, FindsNothingWhereThereIsNothing) {
  EXPECT_FALSE(classification_of("loss = ReduceMean (x)", "loss"));
  EXPECT_FALSE(classification_of("loss = SoftmaxCrossEntropyLoss (x, y)", "loss"));  // no scores
  EXPECT_FALSE(
      classification_of("s = Relu (x)\n z = Add (y, y)\n"
                        "loss = SoftmaxCrossEntropyLoss (s, z)",
                        "loss, s"));  // the labels are computed
  EXPECT_FALSE(
      classification_of("s = Relu (x)\n a = SoftmaxCrossEntropyLoss (s, y)\n"
                        "b = SoftmaxCrossEntropyLoss (s, y)\n loss = Add (a, b)",
                        "loss, s"));  // two of them
}

EvaluationResult evaluate(const test::TinyOptions& options, int64_t samples, int64_t batch) {
  const Model artifact = test::tiny_artifact(options);
  Session session(artifact, {1, {}, {}});
  Evaluator evaluator(session, InputMap(test::tiny_data(samples), test::inputs_of(session)), batch);
  evaluator.prepare();
  const auto result = evaluator.run();
  EXPECT_TRUE(result.has_value());
  return result.value_or(EvaluationResult{});
}

TEST(Evaluator, EverySampleCountsOnceWhateverTheBatch) {
  const EvaluationResult all = evaluate({}, 22, 22);
  ASSERT_TRUE(all.loss && all.top1);
  for (const int64_t batch : {1, 4, 7, 64}) {
    const EvaluationResult parts = evaluate({}, 22, batch);
    EXPECT_EQ(parts.samples, 22);
    EXPECT_EQ(parts.samples_without_loss, 0);
    EXPECT_EQ(parts.top1, all.top1) << batch;
    // Means of f32 losses, each rounded once: 22 of them differ by a few epsilon.
    EXPECT_NEAR(*parts.loss, *all.loss, 8 * 1.2e-7 * *all.loss) << batch;
  }
}

TEST(Evaluator, AFixedBatchIsFilledUpAndOnlyRealRowsCount) {
  const EvaluationResult all = evaluate({}, 22, 22);
  const EvaluationResult padded = evaluate({.batch = test::BatchDim::kFixed4}, 22, 4);
  EXPECT_EQ(padded.samples, 22);
  EXPECT_EQ(padded.top1, all.top1);
  ASSERT_TRUE(padded.loss);
  EXPECT_NEAR(*padded.loss, *all.loss, 8 * 1.2e-7 * *all.loss);
  EXPECT_EQ(padded.samples_without_loss, 0);
}

/// Batches count as many times as they have labels that do, also where the loss is more than a
/// cross-entropy.
TEST(Evaluator, IgnoredLabelsCountInNoBatch) {
  Tensor labels(DType::kI64, {22});
  for (size_t i = 0; i < 22; ++i)
    labels.mutable_data<int64_t>()[i] = i % 3 == 1 || i > 15 ? -100 : static_cast<int64_t>(i % 2);
  const Dataset data("some ignored", {test::tiny_data(22).fields()[0], {"labels", labels}});
  const Model artifact = test::tiny_artifact({.label_smoothing = 0.2f});
  const auto loss = [&](int64_t batch) {
    Session session(artifact, {1, {}, {}});
    Evaluator evaluator(session, InputMap(data, test::inputs_of(session)), batch);
    evaluator.prepare();
    return *evaluator.run()->loss;
  };
  const double all = loss(22);
  for (const int64_t batch : {1, 4, 7}) EXPECT_NEAR(loss(batch), all, 1e-6 * all) << batch;
}

TEST(Evaluator, SaysWhereEveryLabelIsIgnored) {
  Session session(test::tiny_artifact({}), {1, {}, {}});
  const Dataset data("ignored", {test::tiny_data(6).fields()[0],
                                 {"labels", Tensor::full(DType::kI64, {6}, -100)}});
  Evaluator evaluator(session, InputMap(data, test::inputs_of(session)), 4);
  evaluator.prepare();
  const auto result = evaluator.run();
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->loss);
  EXPECT_THAT(evaluation_sentence(3, *result),
              HasSubstr("evaluation after step 3: no loss, since every label is ignored"));
}

TEST(Evaluator, StopsBetweenBatches) {
  const Model artifact = test::tiny_artifact({});
  Session session(artifact, {1, {}, {}});
  Evaluator evaluator(session, InputMap(test::tiny_data(22), test::inputs_of(session)), 4);
  evaluator.prepare();
  int asked = 0;
  EXPECT_FALSE(evaluator.run([&] { return ++asked > 2; }).has_value());
  EXPECT_EQ(asked, 3);
}

TEST(Evaluator, ChangesNoState) {
  const Model artifact = test::tiny_artifact({});
  Session session(artifact, {1, {}, {}});
  const auto states = [&] {
    std::vector<NamedTensor> all;
    for (const StateEntry& entry : session.state().entries()) {
      all.push_back({entry.name, session.state().get(entry)});
    }
    return all;
  };
  const auto before = states();
  Evaluator evaluator(session, InputMap(test::tiny_data(22), test::inputs_of(session)), 4);
  evaluator.prepare();
  evaluator.run();
  test::expect_same_states(states(), before);
}

}  // namespace
}  // namespace halfnote
