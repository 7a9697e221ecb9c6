// Steps beside the main line of a captured graph: which ones leave it, and that they change no bit
// whatever the order in which the lines take turns.
#include "runtime/core/steps/branches.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/import.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"
#include "tests/cuda/random_batch.h"
#include "tests/environment.h"

namespace halfnote::branches {
namespace {

using testing::UnorderedElementsAre;

/// Of a backward pass: a layer's gradients of weight and input, the next layer's, judgement,
/// update.
std::vector<BranchStep> backward() {
  return {{{0}, {1}},                            // 0 dY
          {{1}, {2}},                            // 1 dW
          {{1}, {3}},                            // 2 dX
          {{3}, {4}},                            // 3 dX of the layer before
          {{2, 4}, {5}},                         // 4 is it finite?
          {{2, 4, 5}, {6}, true, false, true}};  // 5 update
}

std::vector<BranchBuffer> small(size_t count) { return std::vector<BranchBuffer>(count, {64}); }

std::vector<int> joins_of(const std::vector<BranchStep>& steps,
                          const std::vector<BranchBuffer>& buffers) {
  const Branches branches(steps, buffers);
  std::vector<int> joins;
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) joins.push_back(branches.join(i));
  return joins;
}

TEST(Branches, AGradientOfAWeightJoinsWhereItIsRead) {
  const std::vector<BranchStep> steps = backward();
  EXPECT_EQ(joins_of(steps, small(7)), (std::vector<int>{0, 4, 0, 0, 0, 0}));
  const Branches branches(steps, small(7));
  EXPECT_THAT(branches.held(4), UnorderedElementsAre(1, 2));
  EXPECT_EQ(branches.last_join(), 4);
}

TEST(Branches, NobodyLeavesForNothing) {
  // What is read at once, by a step beside too, and what is large.
  EXPECT_EQ(joins_of({{{0}, {1}}, {{1}, {2}}, {{2}, {3}}}, small(4)), (std::vector<int>{0, 0, 0}));
  std::vector<BranchBuffer> large = small(7);
  large[3].bytes = size_t{1} << 29;
  EXPECT_EQ(joins_of(backward(), large), std::vector<int>(6, 0));
  std::vector<BranchStep> steps = backward();
  steps[1].stays = true;
  EXPECT_EQ(joins_of(steps, small(7)), std::vector<int>(6, 0));
}

TEST(Branches, StatesChangeWhenAllBeforeHaveJoined) {
  std::vector<BranchStep> steps = backward();
  steps[3].changes_states = true;  // running statistics
  EXPECT_EQ(joins_of(steps, small(7)), (std::vector<int>{0, 3, 0, 0, 0, 0}));
  steps[1].changes_states = true;
  EXPECT_EQ(joins_of(steps, small(7)), std::vector<int>(6, 0));
}

// Beside the reciprocal of the loss scale the judgement may be, but nothing that it waits for.
TEST(Branches, WhatOthersWaitForLongestStays) {
  const std::vector<BranchStep> steps = {{{0}, {1}},                               // 0 dY
                                         {{1}, {2}},                               // 1 dW
                                         {{1}, {3}},                               // 2 dX
                                         {{3}, {4}},                               // 3 dW before
                                         {{2, 4}, {5}},                            // 4 finite?
                                         {{6}, {7}},                               // 5 1 / scale
                                         {{2, 4, 5, 7}, {8}, true, false, true}};  // 6 update
  EXPECT_EQ(joins_of(steps, small(9)), (std::vector<int>{0, 6, 0, 0, 6, 0, 0}));
}

TEST(Branches, ViewsAreNoSteps) {
  std::vector<BranchStep> steps = backward();
  steps[2].runs = steps[3].runs = false;
  EXPECT_EQ(joins_of(steps, small(7)), std::vector<int>(6, 0));
}

TEST(Branches, WhatFollowsBesideJoinsWithIt) {
  // dW is cast, both beside dX; the cast is a result.
  std::vector<BranchBuffer> buffers = small(6);
  buffers[3].kept = true;
  const std::vector<BranchStep> steps = {
      {{0}, {1}}, {{1}, {2}}, {{2}, {3}}, {{1}, {4}}, {{4}, {5}}};
  EXPECT_EQ(joins_of(steps, buffers), (std::vector<int>{0, 5, 5, 0, 0}));
}

TEST(Branches, ThereAreTwoWishes) {
  const Variable wish("HALFNOTE_BRANCHES", "perhaps");
  EXPECT_THROW(Branches(backward(), small(7)), Error);
}

constexpr const char* kResidual = R"(<ir_version: 10, opset_import: ["" : 23]>
net (float[N,16] x) => (float[N,16] y) <float[16,16] w = {W}, float[16,16] v = {W}, float[16] g = {G}> {
  n = LayerNormalization <axis: int = -1> (x, g)
  h = MatMul (n, w)
  a = Tanh (h)
  m = MatMul (a, v)
  b = Add (m, x)
  k = MatMul (b, w)
  y = Add (k, a)
})";

std::string numbers(size_t count) {
  std::mt19937 engine(5);
  std::string text = "{";
  for (size_t i = 0; i < count; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(engine() * 0x1p-32 - 0.5);
  return text + "}";
}

Model residual_model() {
  std::string text = kResidual;
  for (size_t at = 0; (at = text.find("{W}")) != std::string::npos;)
    text.replace(at, 3, numbers(256));
  text.replace(text.find("{G}"), 3, numbers(16));
  return parse_model(text, "residual.onnxtxt");
}

Session open_session(const Model& model, const std::string& loss, DType precision) {
  CompileOptions compile;
  compile.policy.dtype = precision;
  compile.train.loss = loss;
  compile.train.optimizer.kind = "adamw";
  SessionOptions options;
  options.device = test::tested_device();
  options.threads = 1;
  return Session(compile_model(model, compile).model, options);
}

/// The states after some steps, and how many steps leave the main line.
struct Trained {
  std::vector<Tensor> states;
  int64_t beside = 0;
};

Trained train(const Model& model, const std::string& loss, DType precision) {
  Session session = open_session(model, loss, precision);
  for (uint32_t i = 0; i < 4; ++i) {
    session.step(test::random_batch(session, 5, i));
  }
  Trained trained;
  for (const StateEntry& entry : session.state().entries())
    trained.states.push_back(session.state().get(entry));
  const std::string& step = session.model().training.front().name;
  trained.beside = std::ranges::count_if(session.program(step)->steps,
                                         [](const ProgramStep& s) { return s.joins_before > 0; });
  return trained;
}

TEST(Branches, ChangeNoBit) {
  if (test::tested_device() == "none") GTEST_SKIP() << "no device";
  const Model images =
      import_model(std::string(HALFNOTE_SOURCE_DIR) + "/samples/fashion_mnist/model.onnxtxt");
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [model, loss] : {std::pair(residual_model(), std::string("mse")),
                                      std::pair(images, std::string("cross_entropy"))}) {
      SCOPED_TRACE(std::string(short_name(precision)) + " " + loss);
      const Trained alone = [&] {
        const Variable wish("HALFNOTE_BRANCHES", "never");
        return train(model, loss, precision);
      }();
      const Trained beside = train(model, loss, precision);
      EXPECT_EQ(alone.beside, 0);
      EXPECT_GE(beside.beside, 3);
      ASSERT_EQ(alone.states.size(), beside.states.size());
      for (size_t i = 0; i < alone.states.size(); ++i) {
        const Tensor &a = alone.states[i], &b = beside.states[i];
        EXPECT_TRUE(std::equal(a.bytes(), a.bytes() + a.byte_size(), b.bytes())) << i;
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::branches
