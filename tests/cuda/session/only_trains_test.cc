// What a session that only trains leaves out: results that nobody reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/call.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

/// 20 classes, which bf16 pads to 24, and a second result that nobody trains on.
Model padded_classifier() {
  std::string weights;
  for (int i = 0; i < 16 * 20; ++i) weights += (i ? ", " : "") + std::to_string(i * 37 % 23 - 11);
  return parse_model(
      "<ir_version: 10, opset_import: [\"\" : 17]> padded (float[N,16] x) => (float[N,20] y,"
      " float[N,20] z) <float[16,20] w = {" +
          weights + "}> { y = MatMul (x, w) z = Tanh (y) }",
      "padded");
}

/// The one that only trains counts the scores where the product leaves them, and keeps nothing.
TEST(DeviceSession, WhatOnlyTrainsKeepsNoScores) {
  CompileOptions options;
  options.policy.dtype = DType::kBF16;
  options.train.loss = "cross_entropy";
  options.train.optimizer.kind = "adamw";
  const Model model = compile_model(padded_classifier(), options).model;
  const auto session_that = [&](bool only_trains, const std::string& device) {
    SessionOptions on;
    on.device = device;
    on.only_trains = only_trains;
    return Session(model, on);
  };
  Session keeps = session_that(false, test::tested_device());
  Session trains = session_that(true, test::tested_device()), cpu = session_that(true, "cpu");
  std::vector<Tensor> inputs = {cuda_emulated::random(DType::kF32, {30, 16}),
                                Tensor(DType::kI64, {30})};
  for (int64_t i = 0; i < 30; ++i) inputs[1].mutable_data<int64_t>()[i] = i % 20;
  for (int step = 0; step < 3; ++step) {
    const StepResult wanted = keeps.step(inputs), got = trains.step(inputs);
    EXPECT_EQ(got.loss, wanted.loss);
    ASSERT_TRUE(got.correct && wanted.correct);
    EXPECT_EQ(got.correct->top1, wanted.correct->top1);
    EXPECT_EQ(got.correct->labels, 30);
    EXPECT_GT(got.correct->top1, 0);
    cpu.step(inputs);
  }
  EXPECT_EQ(keeps.output("y").shape(), (Shape{30, 20}));
  EXPECT_EQ(keeps.output("z").shape(), (Shape{30, 20}));
  EXPECT_EQ(cpu.output("y").shape(), (Shape{30, 20}));
  EXPECT_THROW(cpu.output("z"), Error);
  EXPECT_THROW(trains.output("y"), Error);
  const auto steps_of = [](const Session& session, std::string_view op) {
    const auto& steps = session.program(session.model().training.front().name)->steps;
    return std::ranges::count_if(steps, [&](const ProgramStep& step) { return step.op == op; });
  };
  EXPECT_EQ(steps_of(trains, "Tanh"), 0);
  EXPECT_EQ(steps_of(keeps, "Slice"), 2);
  EXPECT_EQ(steps_of(trains, "Slice"), 1) << "of the gradient of w alone";
}

/// Scores of integers are counted on the host; indices of what is not made are not looked at.
TEST(DeviceSession, WhatOnlyTrainsAsksNothingOfWhatItLeavesOut) {
  const std::string_view text =
      "<ir_version: 10, opset_import: [\"\" : 17]> odd (float[4,2] x, int64[4] ids, int64[4] t) =>"
      " (float l, int32[4,3] whole, float[4,2] rows) <float[2,3] w = {1, 2, 3, 3, 2, 1},"
      " float[5,2] e = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0}> { s = MatMul (x, w)"
      " whole = Cast <to = 6> (s) l = SoftmaxCrossEntropyLoss (s, t) rows = Gather (e, ids) }";
  CompileOptions options;
  options.train.loss_outputs = {"l"};
  SessionOptions on;
  on.device = test::tested_device();
  on.only_trains = true;
  Session session(compile_model(parse_model(text, "odd"), options).model, on);
  const std::vector<Tensor> inputs = {cuda_emulated::random(DType::kF32, {4, 2}),
                                      Tensor::full(DType::kI64, {4}, 99),
                                      Tensor::full(DType::kI64, {4}, 1)};
  EXPECT_GT(session.step(inputs).loss, 0);
  const EvaluatedBatch evaluated = session.evaluate_batch(inputs, Evaluates::kCounts);
  EXPECT_GT(evaluated.loss, 0);
  EXPECT_FALSE(evaluated.counts);
  EXPECT_EQ(session.evaluated_scores().dtype(), DType::kI32);
}

}  // namespace
}  // namespace halfnote
