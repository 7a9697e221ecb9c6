// The rule of the loss scale against traces simulated from the rules of other systems (interval 4,
// first scale 1024; F a finite step, I one that overflowed; the scale after each step), and its
// edges. The kernel runs beside the function.
#include "kernels/math/loss_scale.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

using math::HysteresisRefill;
using math::LossScaleRule;
using math::LossScaleState;

using Trace = std::vector<float>;

Attributes attributes_of(const LossScaleRule& rule) {
  return {{"up", rule.up},
          {"down", rule.down},
          {"interval", int64_t{rule.interval}},
          {"hysteresis", int64_t{rule.hysteresis}},
          {"refill",
           std::string(rule.refill == HysteresisRefill::kEveryClean ? "every_clean" : "on_growth")},
          {"first_window_extra", int64_t{rule.first_window_extra}},
          {"publish_delay", int64_t{rule.publish_delay}},
          {"warmup_interval", int64_t{rule.warmup_interval}},
          {"min", rule.min},
          {"max", rule.max}};
}

/// Runs the events through the function, and expects the same state from the kernel after each of
/// them.
Trace trace_of(const LossScaleRule& rule, std::string_view events, float init = 1024) {
  LossScaleState state = math::initial_loss_scale(rule, init);
  std::vector<Tensor> tensors = {
      Tensor::scalar(state.scale),        Tensor::scalar(state.growth),
      Tensor::scalar(state.hysteresis),   Tensor::scalar(state.pending),
      Tensor::scalar(state.clean),        Tensor::scalar(state.skips),
      Tensor::scalar(state.skips_in_row), Tensor::scalar(state.floor_hits)};
  const std::vector<OutputSpec> outputs = {{DType::kF32, {}}, {DType::kI32, {}}, {DType::kI32, {}},
                                           {DType::kF32, {}}, {DType::kI32, {}}, {DType::kI64, {}},
                                           {DType::kI32, {}}, {DType::kI32, {}}};
  Trace scales;
  for (const char event : events) {
    state = math::update_loss_scale(rule, state, event == 'F');
    tensors.push_back(Tensor::scalar(event == 'F'));
    tensors = run_kernel("ai.halfnote", "UpdateLossScale", tensors, attributes_of(rule), outputs);
    EXPECT_EQ(tensors[0].at_as_double(0), state.scale);
    EXPECT_EQ(tensors[1].at_as_int(0), state.growth);
    EXPECT_EQ(tensors[2].at_as_int(0), state.hysteresis);
    EXPECT_EQ(tensors[3].at_as_double(0), state.pending);
    EXPECT_EQ(tensors[4].at_as_int(0), state.clean);
    EXPECT_EQ(tensors[5].at_as_int(0), state.skips);
    EXPECT_EQ(tensors[6].at_as_int(0), state.skips_in_row);
    EXPECT_EQ(tensors[7].at_as_int(0), state.floor_hits);
    scales.push_back(state.scale);
  }
  return scales;
}

/// No bounds, interval 4.
LossScaleRule plain_rule() {
  LossScaleRule rule;
  rule.interval = 4;
  rule.min = 0;
  rule.max = 0;
  return rule;
}

struct Golden {
  const char* name;
  LossScaleRule rule;
  Trace mixed, burst, alternating;  // after the three event strings below
};

constexpr std::string_view kMixed = "FFFFIFFFFFIIFFFFFF";
constexpr std::string_view kBurst = "IIIIFFFFIF";
constexpr std::string_view kAlternating = "IFIFIFIF";

// Traces that several systems share.
const Trace late_doubling = {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024,
                             2048, 2048, 1024, 1024, 1024, 1024, 1024, 2048, 2048};
const Trace megatron_mixed = {1024, 1024, 1024, 2048, 2048, 2048, 2048, 2048, 4096,
                              4096, 4096, 2048, 2048, 2048, 2048, 4096, 4096, 4096};
const Trace halvings = {512, 512, 256, 256, 128, 128, 64, 64};
const Trace late_halvings = {1024, 1024, 512, 512, 256, 256, 128, 128};
const Trace constant(8, 1024);

std::vector<Golden> golden_traces() {
  LossScaleRule pytorch = plain_rule();
  LossScaleRule mxnet = plain_rule();
  mxnet.publish_delay = true;
  LossScaleRule deepspeed = plain_rule();
  deepspeed.first_window_extra = 1;
  LossScaleRule deepspeed_2 = deepspeed;
  deepspeed_2.hysteresis = 2;
  LossScaleRule consecutive = deepspeed_2;
  consecutive.refill = HysteresisRefill::kEveryClean;
  LossScaleRule megatron = plain_rule();
  megatron.hysteresis = 2;
  LossScaleRule apex = megatron;
  apex.refill = HysteresisRefill::kEveryClean;
  return {
      {"pytorch",
       pytorch,
       {1024, 1024, 1024, 2048, 1024, 1024, 1024, 1024, 2048, 2048, 1024, 512, 512, 512, 512, 1024,
        1024, 1024},
       {512, 256, 128, 64, 64, 64, 64, 128, 64, 64},
       halvings},
      {"mxnet",
       mxnet,
       {1024, 1024, 1024, 1024, 2048, 1024, 1024, 1024, 1024, 2048, 2048, 1024, 512, 512, 512, 512,
        1024, 1024},
       {1024, 512, 256, 128, 64, 64, 64, 64, 128, 64},
       {1024, 512, 512, 256, 256, 128, 128, 64}},
      {"deepspeed, hysteresis 1",
       deepspeed,
       {1024, 1024, 1024, 1024, 512, 512, 512, 512, 512, 1024, 512, 256, 256, 256, 256, 256, 512,
        512},
       {512, 256, 128, 64, 64, 64, 64, 64, 32, 32},
       halvings},
      {"deepspeed, hysteresis 2",
       deepspeed_2,
       late_doubling,
       {1024, 512, 256, 128, 128, 128, 128, 128, 64, 64},
       late_halvings},
      {"deepspeed, hysteresis 2, consecutive",
       consecutive,
       late_doubling,
       {1024, 512, 256, 128, 128, 128, 128, 128, 128, 128},
       constant},
      {"megatron, hysteresis 2",
       megatron,
       megatron_mixed,
       {1024, 512, 256, 128, 128, 128, 128, 256, 256, 256},
       late_halvings},
      {"apex, hysteresis 2",
       apex,
       megatron_mixed,
       {1024, 512, 256, 128, 128, 128, 128, 256, 256, 256},
       constant},
  };
}

TEST(LossScale, FollowsTheTraceOfEverySystem) {
  for (const Golden& golden : golden_traces()) {
    SCOPED_TRACE(golden.name);
    EXPECT_EQ(trace_of(golden.rule, kMixed), golden.mixed);
    EXPECT_EQ(trace_of(golden.rule, kBurst), golden.burst);
    EXPECT_EQ(trace_of(golden.rule, kAlternating), golden.alternating);
  }
}

TEST(LossScale, StopsAtItsLowerBound) {
  LossScaleRule rule = plain_rule();
  EXPECT_EQ(trace_of(rule, "IIIIII", 8), (Trace{4, 2, 1, 0.5f, 0.25f, 0.125f}));
  rule.min = 1;
  EXPECT_EQ(trace_of(rule, "IIIIII", 8), (Trace{4, 2, 1, 1, 1, 1}));
  EXPECT_EQ(trace_of(rule, "I", 0.5f), (Trace{0.5f})) << "a bound must not raise the scale";
}

TEST(LossScale, CountsSkipsAndHitsOfTheFloor) {
  LossScaleRule rule = plain_rule();
  rule.min = 256;
  rule.hysteresis = 2;
  LossScaleState state = math::initial_loss_scale(rule, 1024);
  const auto after = [&](std::string_view events) {
    for (const char event : events) state = math::update_loss_scale(rule, state, event == 'F');
    return std::array<int64_t, 3>{state.skips, state.skips_in_row, state.floor_hits};
  };
  EXPECT_EQ(after("FI"), (std::array<int64_t, 3>{1, 1, 0})) << "hysteresis holds";
  EXPECT_EQ(after("II"), (std::array<int64_t, 3>{3, 3, 0})) << "down to 256";
  EXPECT_EQ(after("I"), (std::array<int64_t, 3>{4, 4, 1})) << "no way down";
  EXPECT_EQ(after("F"), (std::array<int64_t, 3>{4, 0, 1}));
  EXPECT_EQ(after("I"), (std::array<int64_t, 3>{5, 1, 2})) << "hysteresis is used up";
  rule.min = 0;
  EXPECT_EQ(after("III"), (std::array<int64_t, 3>{8, 4, 2})) << "no floor";
}

TEST(LossScale, StopsAtItsUpperBoundAndBeforeInfinity) {
  LossScaleRule rule = plain_rule();
  rule.interval = 1;
  rule.max = 3000;
  EXPECT_EQ(trace_of(rule, "FFF"), (Trace{2048, 3000, 3000}));
  EXPECT_EQ(trace_of(rule, "F", 4096), (Trace{4096})) << "a bound must not lower the scale";
  rule.max = 0;
  const float huge = std::numeric_limits<float>::max() / 1.5f;
  EXPECT_EQ(trace_of(rule, "FF", huge), (Trace{huge, huge}));
}

TEST(LossScale, GrowsAtStepFourAndEightOrOneLater) {
  const Trace prompt = {1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096, 4096};
  const Trace late = {1024, 1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096};
  LossScaleRule rule = plain_rule();
  EXPECT_EQ(trace_of(rule, "FFFFFFFFF"), prompt);
  rule.first_window_extra = 1;
  EXPECT_EQ(trace_of(rule, "FFFFFFFFF"), late);
  rule.first_window_extra = 0;
  rule.publish_delay = true;
  EXPECT_EQ(trace_of(rule, "FFFFFFFFF"), late);
}

TEST(LossScale, WarmsUpUntilTheFirstOverflow) {
  LossScaleRule rule = plain_rule();
  rule.warmup_interval = 2;
  EXPECT_EQ(trace_of(rule, "FFFFIFFFFF"),
            (Trace{1024, 2048, 2048, 4096, 2048, 2048, 2048, 2048, 4096, 4096}));
}

TEST(LossScale, StaysWhenStatic) {
  LossScaleRule rule = plain_rule();
  rule.up = rule.down = 1;
  rule.interval = 0;
  EXPECT_EQ(trace_of(rule, "FFIFFFFFF"), Trace(9, 1024));
}

}  // namespace
}  // namespace halfnote::test
