// The loss scale of compiled models under planted overflows, for every preset: golden traces
// simulated from the rules of each system (interval 4, first scale 1024, the value in use after
// each step; F a finite step, I one that overflows).
#include <limits>
#include <set>

#include "passes/precision/presets.h"
#include "support.h"

namespace halfnote::test {
namespace {

using Trace = std::vector<double>;

constexpr std::string_view kMixed = "FFFFIFFFFFIIFFFFFF";
constexpr std::string_view kBurst = "IIIIFFFFIF";
constexpr std::string_view kTurns = "IFIFIFIF";

LossScaler quick(std::string_view preset, float init = 1024) {
  LossScaler scaler = scaler_preset(preset);
  scaler.init = init;
  scaler.interval = 4;
  scaler.warmup_interval = 0;
  return scaler;
}

Trace trace_of(const LossScaler& scaler, std::string_view events) {
  CompileOptions options = options_for("sgd", DType::kF16);
  options.train.optimizer.lr = 0.01f;
  options.policy.scaler = scaler;
  Session session = reference_session(mlp_model(), options);
  const std::vector<Tensor> good = mlp_batch(4, 1);
  const std::vector<Tensor> bad = {
      Tensor::full(DType::kF32, {4, 6}, std::numeric_limits<double>::infinity()), good[1]};
  Trace scales;
  for (const char event : events) {
    const StepResult result = session.step(event == 'F' ? good : bad);
    EXPECT_EQ(result.applied, event == 'F');
    scales.push_back(result.loss_scale);
  }
  return scales;
}

struct Golden {
  std::vector<const char*> presets;
  Trace mixed, burst, turns;
};

const std::vector<Golden>& golden_traces() {
  static const Trace kLate = {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024,
                              2048, 2048, 1024, 1024, 1024, 1024, 1024, 2048, 2048};
  static const Trace kTwo = {1024, 1024, 1024, 2048, 2048, 2048, 2048, 2048, 4096,
                             4096, 4096, 2048, 2048, 2048, 2048, 4096, 4096, 4096};
  static const Trace kTwoBurst = {1024, 512, 256, 128, 128, 128, 128, 256, 256, 256};
  static const Trace kTwoTurns = {1024, 1024, 512, 512, 256, 256, 128, 128};
  static const Trace kStill(8, 1024);
  static const std::vector<Golden> kTraces = {
      {{"halfnote", "pytorch", "keras", "tfkeras", "ort", "paddle", "megengine", "apex", "jmp"},
       {1024, 1024, 1024, 2048, 1024, 1024, 1024, 1024, 2048, 2048, 1024, 512, 512, 512, 512, 1024,
        1024, 1024},
       {512, 256, 128, 64, 64, 64, 64, 128, 64, 64},
       {512, 512, 256, 256, 128, 128, 64, 64}},
      {{"mxnet"},
       {1024, 1024, 1024, 1024, 2048, 1024, 1024, 1024, 1024, 2048, 2048, 1024, 512, 512, 512, 512,
        1024, 1024},
       {1024, 512, 256, 128, 64, 64, 64, 64, 128, 64},
       {1024, 512, 512, 256, 256, 128, 128, 64}},
      {{"deepspeed"}, kLate, {1024, 512, 256, 128, 128, 128, 128, 128, 64, 64}, kTwoTurns},
      {{"deepspeed_consecutive"},
       kLate,
       {1024, 512, 256, 128, 128, 128, 128, 128, 128, 128},
       kStill},
      {{"megatron"}, kTwo, kTwoBurst, kTwoTurns},
      {{"apex_hysteresis"}, kTwo, kTwoBurst, kStill},
      {{"static"}, Trace(18, 1024), Trace(10, 1024), kStill},
  };
  return kTraces;
}

TEST(ScaleOfPresets, FollowsTheirTraces) {
  std::set<std::string> covered;
  for (const Golden& golden : golden_traces()) {
    for (const char* preset : golden.presets) {
      SCOPED_TRACE(preset);
      covered.insert(preset);
      EXPECT_EQ(trace_of(quick(preset), kMixed), golden.mixed);
      EXPECT_EQ(trace_of(quick(preset), kBurst), golden.burst);
      EXPECT_EQ(trace_of(quick(preset), kTurns), golden.turns);
    }
  }
  for (const ScalerPreset& preset : scaler_presets()) {
    EXPECT_TRUE(covered.contains(std::string(preset.name))) << preset.name << " has no trace";
  }
}

TEST(ScaleOfPresets, DeepSpeedWithoutHysteresis) {
  LossScaler scaler = quick("deepspeed");
  scaler.hysteresis = 1;
  EXPECT_EQ(trace_of(scaler, kMixed), (Trace{1024, 1024, 1024, 1024, 512, 512, 512, 512, 512, 1024,
                                             512, 256, 256, 256, 256, 256, 512, 512}));
  EXPECT_EQ(trace_of(scaler, kBurst), (Trace{512, 256, 128, 64, 64, 64, 64, 64, 32, 32}));
  EXPECT_EQ(trace_of(scaler, kTurns), (Trace{512, 512, 256, 256, 128, 128, 64, 64}));
}

TEST(ScaleOfPresets, StopsAtItsFloorOrGoesBelowOne) {
  for (const char* preset : {"keras", "pytorch", "megengine", "apex"}) {
    EXPECT_EQ(trace_of(quick(preset, 8), "IIIIII"), (Trace{4, 2, 1, 0.5, 0.25, 0.125})) << preset;
  }
  for (const char* preset : {"halfnote", "tfkeras", "ort", "paddle", "jmp"}) {
    EXPECT_EQ(trace_of(quick(preset, 8), "IIIIII"), (Trace{4, 2, 1, 1, 1, 1})) << preset;
  }
  for (const char* preset : {"deepspeed", "megatron"}) {
    EXPECT_EQ(trace_of(quick(preset, 8), "IIIIII"), (Trace{8, 4, 2, 1, 1, 1})) << preset;
  }
  EXPECT_EQ(trace_of(quick("mxnet", 8), "IIIIII"), (Trace{8, 4, 2, 1, 0.5, 0.25}));
}

TEST(ScaleOfPresets, GrowsAtStepFourAndEightOrOneLater) {
  const Trace prompt = {1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096, 4096};
  const Trace late = {1024, 1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096};
  for (const char* preset : {"pytorch", "keras", "ort", "megatron"}) {
    EXPECT_EQ(trace_of(quick(preset), "FFFFFFFFF"), prompt) << preset;
  }
  for (const char* preset : {"mxnet", "deepspeed"}) {
    EXPECT_EQ(trace_of(quick(preset), "FFFFFFFFF"), late) << preset;
  }
}

}  // namespace
}  // namespace halfnote::test
