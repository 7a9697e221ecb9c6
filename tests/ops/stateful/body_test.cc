// Bodies of dropout, the optimizers and the loss scaler against their kernels.
#include <gtest/gtest.h>

#include <limits>

#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"

namespace halfnote::test {
namespace {

TEST(StatefulBody, DropoutIsIdentical) {
  const int64_t seeds[] = {0, 42, -1, std::numeric_limits<int64_t>::min(), 0x123456789abcdef};
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape& shape : {Shape{0}, Shape{}, Shape{7}, Shape{3, 5, 11}}) {
      for (float ratio : {0.0f, 0.1f, 0.5f, 1.0f}) {
        for (int64_t seed : seeds) {
          expect_body_identical({to_string(shape),
                                 "Dropout",
                                 {{"ratio", ratio}, {"node", int64_t{3}}},
                                 {random_tensor(dtype, shape, 1), Tensor::scalar<int64_t>(seed),
                                  Tensor::scalar<int64_t>((int64_t{5} << 32) + 17)}});
        }
      }
    }
  }
}

TEST(StatefulBody, DropoutKeepsTheRightShare) {
  const Tensor ones = Tensor::full(DType::kF32, {4096}, 1);
  const BodyCase call{"share",
                      "Dropout",
                      {{"ratio", 0.25f}, {"node", int64_t{0}}},
                      {ones, Tensor::scalar<int64_t>(7), Tensor::scalar<int64_t>(0)}};
  const Tensor y = run_body(call)[0];
  int kept = 0;
  for (int64_t i = 0; i < y.size(); ++i) {
    if (y.at_as_double(i) == 0) continue;
    ++kept;
    EXPECT_FLOAT_EQ(static_cast<float>(y.at_as_double(i)), 4.0f / 3);
  }
  EXPECT_NEAR(kept, 3072, 4 * 28);  // four standard deviations of a binomial with p = 3/4
}

// Both sides do the same few operations on an element; only pow and sqrt of the shared factors may
// round differently.
constexpr double kUpdate = 4;

/// Parameter, gradient and `moments` states of an optimizer, then the scalars.
std::vector<Tensor> optimizer_inputs(DType dtype, int moments, int64_t step) {
  const Shape shape = {3, 5};
  std::vector<Tensor> inputs = {random_tensor(dtype, shape, 1), random_tensor(dtype, shape, 2)};
  for (int i = 0; i < moments; ++i) {
    inputs.push_back(random_tensor(dtype, shape, 3 + static_cast<uint64_t>(i), 0.1, 1));
  }
  inputs.push_back(Tensor::scalar_of(dtype, 0.125));
  if (step > 0) inputs.push_back(Tensor::scalar<int64_t>(step));
  return inputs;
}

/// Without `commit`, committed, and not committed: then nothing moves.
void expect_optimizer(const std::string& op, const Attributes& attributes, int moments,
                      bool has_step) {
  for (DType dtype : {DType::kF64, DType::kF32}) {
    for (int64_t step : {1, 2, 1000}) {
      BodyCase call{op, op, attributes, optimizer_inputs(dtype, moments, has_step ? step : 0),
                    1 + moments};
      expect_body_agrees(call, kUpdate);
      call.inputs.push_back(Tensor::scalar<bool>(true));
      expect_body_agrees(call, kUpdate);
      call.inputs.back() = Tensor::scalar<bool>(false);
      expect_body_identical(call);
      const auto kept = run_body(call);
      EXPECT_TRUE(identical(kept[0], call.inputs[0]));
      for (size_t i = 1; i < kept.size(); ++i) EXPECT_TRUE(identical(kept[i], call.inputs[i + 1]));
    }
  }
}

TEST(StatefulBody, SGD) {
  expect_optimizer("SGD", {}, 0, false);
  expect_optimizer("SGD", {{"weight_decay", 0.1f}}, 0, false);
}

TEST(StatefulBody, Momentum) {
  expect_optimizer("Momentum", {}, 1, true);
  expect_optimizer("Momentum", {{"dampening", 0.5f}, {"weight_decay", 0.1f}}, 1, true);
  expect_optimizer("Momentum", {{"nesterov", int64_t{1}}, {"momentum", 0.8f}}, 1, true);
}

TEST(StatefulBody, Adam) {
  expect_optimizer("Adam", {}, 2, true);
  expect_optimizer("Adam", {{"beta1", 0.8f}, {"weight_decay", 0.1f}, {"epsilon", 1e-3f}}, 2, true);
}

TEST(StatefulBody, AdamW) {
  expect_optimizer("AdamW", {}, 2, true);
  expect_optimizer("AdamW", {{"weight_decay", 0.0f}}, 2, true);
  expect_optimizer("AdamW", {{"correct_bias", int64_t{0}}}, 2, true);
  expect_optimizer("AdamW", {{"adam_mode", int64_t{1}}, {"epsilon", 1e-3f}}, 2, true);
}

TEST(StatefulBody, AllFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor good = random_tensor(dtype, {3, 5}, 1), none(dtype, {0});
    const Tensor scalar = Tensor::scalar_of(dtype, 2);
    const Tensor overflow = Tensor::scalar_of(dtype, -inf);
    const Tensor nan = Tensor::scalar_of(dtype, std::numeric_limits<float>::quiet_NaN());
    expect_body_identical({"finite", "AllFinite", {}, {good, none, scalar}});
    for (const Tensor& bad : {overflow, nan}) {
      const BodyCase call{"not finite", "AllFinite", {}, {good, bad, scalar}};
      expect_body_identical(call);
      EXPECT_FALSE(run_body(call)[0].data<bool>()[0]);
    }
    EXPECT_TRUE(run_body({"one", "AllFinite", {}, {good}})[0].data<bool>()[0]);
  }
}

TEST(StatefulBody, GlobalNorm) {
  for (DType dtype : {DType::kF64, DType::kF32}) {
    // Accumulated in f64 on both sides: the last rounding may differ by one.
    expect_body_agrees({"three",
                        "GlobalNorm",
                        {},
                        {random_tensor(dtype, {3, 5}, 1), random_tensor(dtype, {}, 2),
                         random_tensor(dtype, {70}, 3)}},
                       4);
    expect_body_agrees({"one", "GlobalNorm", {}, {random_tensor(dtype, {9}, 1)}}, 4);
    // As device passes make it: with a factor of all, and the answer of AllFinite.
    expect_body_agrees({"scaled",
                        "GlobalNorm",
                        {{"scaled", int64_t{1}}},
                        {random_tensor(dtype, {9}, 1), random_tensor(dtype, {2, 3}, 2),
                         Tensor::scalar_of(dtype, 1.0 / 3)},
                        2},
                       4);
  }
  expect_body_agrees({"narrow",
                      "GlobalNorm",
                      {{"scaled", int64_t{1}}},
                      {random_tensor(DType::kF16, {9}, 1), random_tensor(DType::kF32, {2, 3}, 2),
                       Tensor::scalar(0.3f)},
                      2},
                     4);
}

struct Scaler {
  const char* name;
  Attributes attributes;
};

const Scaler kScalers[] = {
    {"pytorch", {{"interval", int64_t{4}}, {"min", 0.0f}, {"max", 0.0f}}},
    {"default with warm-up", {{"interval", int64_t{4}}, {"warmup_interval", int64_t{2}}}},
    {"mxnet", {{"interval", int64_t{4}}, {"publish_delay", int64_t{1}}, {"min", 0.0f}}},
    {"deepspeed",
     {{"interval", int64_t{4}}, {"hysteresis", int64_t{2}}, {"first_window_extra", int64_t{1}}}},
    {"deepspeed consecutive",
     {{"interval", int64_t{4}},
      {"hysteresis", int64_t{2}},
      {"first_window_extra", int64_t{1}},
      {"refill", std::string("every_clean")}}},
    {"tight bounds", {{"interval", int64_t{2}}, {"min", 512.0f}, {"max", 1536.0f}}},
    {"static", {{"interval", int64_t{0}}, {"up", 1.0f}, {"down", 1.0f}}},
    {"warm-up only", {{"interval", int64_t{0}}, {"warmup_interval", int64_t{3}}}},
    {"up to the largest float", {{"interval", int64_t{1}}, {"up", 1e30f}, {"max", 0.0f}}},
};

TEST(StatefulBody, UpdateLossScaleFollowsTheKernel) {
  for (const Scaler& scaler : kScalers) {
    for (const std::string events : {"FFFFIFFFFFIIFFFFFF", "IIIIFFFFIF", "IFIFIFIF"}) {
      const auto left = static_cast<int32_t>(scaler.attributes.get_int("hysteresis", 1));
      std::vector<Tensor> state = {Tensor::scalar<float>(1024),   Tensor::scalar<int32_t>(0),
                                   Tensor::scalar<int32_t>(left), Tensor::scalar<float>(1024),
                                   Tensor::scalar<int32_t>(0),    Tensor::scalar<int64_t>(0),
                                   Tensor::scalar<int32_t>(0),    Tensor::scalar<int32_t>(0)};
      for (char event : events) {
        BodyCase call{scaler.name, "UpdateLossScale", scaler.attributes, state, 8};
        call.inputs.push_back(Tensor::scalar<bool>(event == 'F'));
        expect_body_identical(call);
        state = run_kernel(call);
      }
    }
  }
}

TEST(StatefulBody, RandomNumbersAgree) {
  for (const char* op : {"RandomNormal", "RandomUniform"}) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      for (const Shape& shape : {Shape{0}, Shape{}, Shape{7}, Shape{3, 5, 11}}) {
        const Attributes numbers = op == std::string("RandomNormal")
                                       ? Attributes{{"mean", 0.5f}, {"scale", 2.0f}}
                                       : Attributes{{"low", -1.0f}, {"high", 3.0f}};
        BodyCase call{to_string(shape),
                      op,
                      numbers,
                      {random_tensor(DType::kF32, shape, 1), Tensor::scalar<int64_t>(-5),
                       Tensor::scalar<int64_t>((int64_t{5} << 32) + 17)}};
        call.attributes.set("node", int64_t{3});
        call.attributes.set("dtype", static_cast<int64_t>(dtype));
        expect_body_agrees(call, 0);
      }
    }
  }
}

TEST(StatefulBody, RandomNumbersOfAKnownShapeAreThoseOfTheOperand) {
  const Tensor like(DType::kF32, {3, 5}), seed = Tensor::scalar<int64_t>(1), step = seed;
  for (const char* op : {"RandomNormal", "RandomUniform"}) {
    const BodyCase shaped{"shape", op, {{"shape", std::vector<int64_t>{3, 5}}}, {{}, seed, step}};
    EXPECT_TRUE(
        identical(run_kernel(shaped)[0], run_kernel({"like", op, {}, {like, seed, step}})[0]));
    expect_body_agrees(shaped, 0);
  }
}

TEST(StatefulBody, EveryBodyIsTested) {
  const std::set<std::string> kTested = {
      "Adafactor", "Adagrad",      "Adam",          "AdamW", "AllFinite",
      "Dropout",   "GlobalNorm",   "Lamb",          "Lion",  "Momentum",
      "RMSprop",   "RandomNormal", "RandomUniform", "SGD",   "UpdateLossScale"};
  EXPECT_EQ(with_body(stateful_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
