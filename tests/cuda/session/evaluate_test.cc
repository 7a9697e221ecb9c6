// Evaluations on a device: what a report needs is counted there, and the scores stay.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "runtime/train/evaluator.h"
#include "tests/cuda/harness/call.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

/// 20 classes, which 16 bits pad to 24, and a second result that nobody asks for.
Model classifier(DType precision, const std::string& batch, const std::string& attributes = "") {
  std::string weights;
  for (int i = 0; i < 16 * 20; ++i) weights += (i ? ", " : "") + std::to_string(i * 37 % 23 - 11);
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {"l"};
  const std::string n = "[" + batch + ",";
  const Model model =
      parse_model("<ir_version: 10, opset_import: [\"\" : 17]> classifier (float" + n +
                      "16] x, int64[" + batch + "] t) => (float l, float" + n + "20] y, float" + n +
                      "20] z) <float[16,20] w = {" + weights +
                      "}> { y = MatMul (x, w) z = Tanh (y) l = SoftmaxCrossEntropyLoss " +
                      attributes + " (y, t) }",
                  "classifier");
  return compile_model(model, options).model;
}

std::vector<Tensor> batch_of(int64_t rows, uint32_t seed) {
  std::vector<Tensor> inputs = {cuda_emulated::random(DType::kF32, {rows, 16}, -2, 2, seed),
                                Tensor(DType::kI64, {rows})};
  for (int64_t i = 0; i < rows; ++i) {
    const bool ignored = i % 5 == 0;
    inputs[1].mutable_data<int64_t>()[static_cast<size_t>(i)] = ignored ? -100 : i * 7 % 20;
  }
  return inputs;
}

SessionOptions on(const std::string& device) {
  SessionOptions options;
  options.device = device;
  return options;
}

TEST(DeviceEvaluation, CountsAsTheHostDoesAndLeavesTheScoresThere) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    Model model = classifier(precision, "N", "<ignore_index: int = -100>");
    for (const std::string& device : {std::string("cpu"), test::tested_device()}) {
      SCOPED_TRACE(device + " " + std::string(short_name(precision)));
      Session session(model, on(device));
      const auto kind = find_classification(find_step(model, kEvaluateName)->graph);
      ASSERT_TRUE(kind);
      for (const int64_t rows : {33, 7}) {
        const std::vector<Tensor> batch = batch_of(rows, 3);
        const std::vector<Tensor> all = session.evaluate(batch);
        ASSERT_EQ(all.size(), 3u);
        const auto wanted = count_scores(*kind, all[1], batch[1], rows, ScoreLoss::kSkip);
        for (const Evaluates what : {Evaluates::kCounts, Evaluates::kCountsAndScores}) {
          const EvaluatedBatch got = session.evaluate_batch(batch, what);
          EXPECT_EQ(got.loss, all[0].at_as_double(0));
          ASSERT_TRUE(got.counts);
          EXPECT_EQ(got.counts->labels, wanted->labels);
          EXPECT_EQ(got.counts->top1, wanted->top1);
          EXPECT_EQ(got.counts->top5, wanted->top5);
          EXPECT_GT(got.counts->top5, 0);
          const auto& steps = session.program(kEvaluateName)->steps;
          EXPECT_TRUE(std::ranges::none_of(
              steps, [](const ProgramStep& step) { return step.op == "Tanh"; }));
          EXPECT_EQ(session.scores_shape(kEvaluateName, kind->scores), (Shape{rows, 20}));
          if (what == Evaluates::kCounts) {
            EXPECT_THROW(session.evaluated_scores(), Error);
          } else {
            EXPECT_TRUE(identical(session.evaluated_scores(), all[1]));
          }
        }
      }
    }
  }
}

/// A steady evaluation is a copy, a launch and no wait of the host; the scores are not fetched.
TEST(DeviceEvaluation, FetchesNothing) {
  Session session(classifier(DType::kBF16, "N"), on(test::tested_device()));
  std::vector<Tensor> batch = batch_of(64, 1);
  batch[1] = Tensor::full(DType::kI64, {64}, 3);
  for (int i = 0; i < 3; ++i) session.evaluate_batch(batch, Evaluates::kCounts);
  const DeviceCounters before = session.device_counters();
  session.evaluate_batch(batch, Evaluates::kCounts);
  const DeviceCounters after = session.device_counters();
  EXPECT_EQ(after.copies - before.copies, 1u);
  EXPECT_EQ(after.graph_launches - before.graph_launches, 1u);
  EXPECT_EQ(after.synchronisations, before.synchronisations);
  EXPECT_EQ(after.allocations, before.allocations);
}

Dataset data_of(int64_t samples) {
  const std::vector<Tensor> batch = batch_of(samples, 9);
  return Dataset("test", {{"x", batch[0]}, {"t", batch[1]}});
}

EvaluationResult evaluated(const std::string& batch, const std::string& device, int64_t rows) {
  Session session(classifier(DType::kF32, batch, "<ignore_index: int = -100>"), on(device));
  std::vector<ModelInput> inputs;
  for (const auto& [name, type] : session.inputs())
    inputs.push_back({name, type.dtype, *type.shape});
  Evaluator evaluator(session, InputMap(data_of(22), std::move(inputs)), rows);
  evaluator.prepare();
  return evaluator.run().value_or(EvaluationResult{});
}

/// A last batch of its own size, and one that is filled up.
TEST(DeviceEvaluation, EverySampleCountsOnce) {
  const EvaluationResult wanted = evaluated("N", "cpu", 22);
  for (const std::string& device : {std::string("cpu"), test::tested_device()}) {
    for (const std::string batch : {"N", "8"}) {
      const EvaluationResult got = evaluated(batch, device, 8);
      EXPECT_EQ(got.samples, 22);
      EXPECT_EQ(got.top1, wanted.top1);
      EXPECT_EQ(got.top5, wanted.top5);
      EXPECT_NEAR(*got.loss, *wanted.loss, 1e-5 * *wanted.loss);
    }
  }
}

}  // namespace
}  // namespace halfnote
