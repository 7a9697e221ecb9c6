// The arena that the programs of a session share on a device: as large as the largest needs it,
// moved where a larger one comes, and what one program leaves there is kept from the next.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "compiler/ir/text.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"
#include "tests/cuda/random_batch.h"

namespace halfnote::device_arena {
namespace {

constexpr const char* kModel = R"(<ir_version: 10, opset_import: ["" : 23]>
net (float[N,2] x) => (float[N,64] y) <float[2,64] w = {W}> { h = MatMul (x, w) y = Tanh (h) })";

Session open_session(int64_t accumulate) {
  std::string text = kModel, numbers;
  std::mt19937 engine(5);
  for (int i = 0; i < 128; ++i)
    numbers += (i == 0 ? "" : ", ") + std::to_string(engine() * 0x1p-32 - 0.5);
  text.replace(text.find("{W}"), 3, "{" + numbers + "}");
  CompileOptions compile;
  compile.policy.dtype = DType::kBF16;
  compile.train.accumulation = accumulate;
  compile.train.loss = "mse";
  SessionOptions options;
  options.device = test::tested_device();
  options.threads = 1;
  return Session(compile_model(parse_model(text, "arena.onnxtxt"), compile).model, options);
}

/// Every output of the training step.
std::vector<Tensor> outputs_of(const Session& session) {
  std::vector<Tensor> all;
  const std::string& step = session.model().training.front().name;
  for (const ProgramOperand& output : session.program(step)->outputs)
    all.push_back(session.output(output.name));
  return all;
}

bool same_bytes(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) {
    return x.byte_size() == y.byte_size() &&
           std::equal(x.bytes(), x.bytes() + x.byte_size(), y.bytes());
  });
}

TEST(DeviceArena, IsAsLargeAsTheLargestProgram) {
  Session session = open_session(2);
  session.step(test::random_batch(session, 4, 1));
  session.step(test::random_batch(session, 4, 2));
  const size_t trained = session.memory().arena;
  const size_t accumulate = session.program(session.model().training.front().name)->arena_bytes;
  EXPECT_EQ(trained, accumulate) << "the update takes less";
  session.evaluate(test::random_batch(session, 2, 3));
  EXPECT_EQ(session.memory().arena, trained) << "so does an evaluation of fewer samples";
}

/// A larger program moves the arena: the others are captured again, and train on as if it had never
/// been there; once all is warm, nothing is allocated or waited for.
TEST(DeviceArena, TrainsOnAfterItMoved) {
  Session plain = open_session(2), session = open_session(2);
  for (uint32_t step = 0; step < 6; ++step) {
    const std::vector<Tensor> inputs = test::random_batch(session, 4, step);
    EXPECT_EQ(session.step(inputs).loss, plain.step(inputs).loss) << "step " << step;
    if (step != 1) continue;
    const size_t before = session.memory().arena;
    session.evaluate(test::random_batch(session, 200000, 9));
    EXPECT_GT(session.memory().arena, before);
  }
  const DeviceCounters before = session.device_counters();
  for (uint32_t step = 0; step < 2; ++step) session.step(test::random_batch(session, 4, step));
  const DeviceCounters after = session.device_counters();
  EXPECT_EQ(after.launches, before.launches) << "it is captured again once";
  EXPECT_EQ(after.graph_launches, before.graph_launches + 3) << "two micro-batches, an update";
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.synchronisations, before.synchronisations);
}

TEST(DeviceArena, WhatIsStillToBeReadIsKeptFromOtherPrograms) {
  Session plain = open_session(1), session = open_session(1);
  for (const int64_t samples : {2, 4000}) {
    const std::vector<Tensor> inputs = test::random_batch(session, 4, 1);
    plain.step(inputs);
    session.step(inputs);
    session.evaluate(
        test::random_batch(session, samples, 2));  // lies where the outputs did, and moves them
    EXPECT_TRUE(same_bytes(outputs_of(session), outputs_of(plain))) << samples;
  }
  // What was dropped is not.
  const size_t kept = session.memory().outputs;
  session.step(test::random_batch(session, 8, 1));
  session.drop_outputs();
  session.evaluate(test::random_batch(session, 4000, 2));
  EXPECT_EQ(session.memory().outputs, kept);
}

}  // namespace
}  // namespace halfnote::device_arena
