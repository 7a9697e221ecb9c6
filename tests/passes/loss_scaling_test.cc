// Loss scaling and the transactional update of compiled models, run step by step: overflows planted
// in the forward and the backward pass and several in a row, the traces of the presets, and which
// precision has what. What a step that is not finite must not touch is compared bit for bit.
#include "runtime/train/session.h"

#include <cmath>
#include <limits>
#include <set>

#include "compiler/ir/query.h"
#include "passes/precision/presets.h"
#include "support.h"
#include "testing/graph_matchers.h"

namespace halfnote::test {
namespace {

using namespace halfnote::matchers;

// Weights, a normalization with running statistics, a dropout: all that has state.
constexpr std::string_view kNet = R"(main (float[4,8] x) => (float[4,3] y) <
   float[8,8] w = {
      0.5, -0.25, 0.125, 0, 0.25, 0.5, -0.5, 0.125, 0.25, 0.5, -0.5, 0.125, 0.5, -0.25, 0.125, 0,
      -0.5, 0.125, 0.25, 0.5, 0.125, 0, 0.5, -0.25, 0.125, 0, 0.5, -0.25, -0.5, 0.125, 0.25, 0.5,
      0.5, 0.25, 0.125, 0, 0.25, 0.5, 0.5, 0.125, 0.25, -0.5, 0.5, 0.125, 0.5, 0.25, 0.125, 0,
      0.5, 0.125, 0.25, 0.5, 0.125, 0, -0.5, 0.25, 0.125, 0, 0.5, 0.25, 0.5, 0.125, -0.25, 0.5},
   float[8] s = {1, 1, 1, 1, 1, 1, 1, 1},
   float[8] b = {0, 0, 0, 0, 0, 0, 0, 0},
   float[8] mean = {0, 0, 0, 0, 0, 0, 0, 0},
   float[8] var = {1, 1, 1, 1, 1, 1, 1, 1},
   float ratio = {0.25},
   bool training = {1},
   float[8,3] v = {0.5, -0.25, 0.125, 0, 0.25, 0.5, -0.5, 0.125, 0.25, 0.5, -0.5, 0.125, 0.5,
      -0.25, 0.125, 0, -0.5, 0.125, 0.25, 0.5, 0.125, 0, 0.5, -0.25}
> {
   h = MatMul (x, w)
   n, rm, rv = BatchNormalization <training_mode: int = 1> (h, s, b, mean, var)
   r = Relu (n)
   d = Dropout (r, ratio, training)
   y = MatMul (d, v)
}
)";

CompileOptions options_for(DType dtype, const LossScaler& scaler = {}) {
  CompileOptions options;
  options.policy.dtype = dtype;
  options.policy.scaler = scaler;
  options.train.loss = "cross_entropy";
  options.train.optimizer.kind = "adam";
  options.train.optimizer.lr = 0.01f;
  return options;
}

/// A scaler that moves within a few steps.
LossScaler quick(LossScaler scaler = {}) {
  scaler.init = 1024;
  scaler.interval = 4;
  scaler.warmup_interval = 0;
  return scaler;
}

Tensor images(float factor = 1.0f) {
  Tensor x(DType::kF32, {4, 8});
  int i = 0;
  for (float& value : x.mutable_data<float>()) {
    value = factor * static_cast<float>(i++ * 7 % 16 - 8) / 8.0f;
  }
  return x;
}

Tensor labels() { return Tensor::of<int64_t>({4}, {0, 1, 2, 1}); }

class Training {
 public:
  explicit Training(const CompileOptions& options)
      : session_(compile_model(model_of(kNet), options).model, {.threads = 1}) {}

  StepResult step(float factor = 1.0f) {
    return session_.step(std::vector<Tensor>{images(factor), labels()});
  }
  StepResult overflow() { return step(std::numeric_limits<float>::infinity()); }

  /// The bytes of every state of these kinds, by name.
  Feeds states(const std::set<StateKind>& kinds) const {
    Feeds found;
    for (const StateEntry& entry : session_.state().entries()) {
      if (kinds.contains(entry.kind)) found[entry.name] = session_.state().get(entry);
    }
    return found;
  }
  /// What only an applied step may move.
  Feeds committed() const {
    return states(
        {StateKind::kWeight, StateKind::kMoment, StateKind::kStatistic, StateKind::kCounter});
  }
  Session& session() { return session_; }

 private:
  Session session_;
};

void expect_same(const Feeds& before, const Feeds& after) {
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) EXPECT_TRUE(identical(tensor, after.at(name))) << name;
}

/// Every committed state of the net differs from what it was.
void expect_moved(const Feeds& before, const Feeds& after) {
  for (const auto& [name, tensor] : before) EXPECT_FALSE(identical(tensor, after.at(name))) << name;
}

void expect_skipped(Training& run, const Feeds& before, const StepResult& result, int64_t applied) {
  EXPECT_FALSE(result.finite);
  EXPECT_FALSE(result.applied);
  EXPECT_EQ(run.session().applied_steps(), applied);
  expect_same(before, run.committed());
}

TEST(PlantedOverflow, AllKindsOfStateAreThere) {
  Training run(options_for(DType::kF16, quick()));
  const Feeds committed = run.committed();
  for (const char* name : {"w", "v", "s", "b", "w.m", "w.v", "mean", "var", "applied_step"}) {
    EXPECT_TRUE(committed.contains(name)) << name;
  }
}

TEST(PlantedOverflow, InTheForwardPass) {
  Training run(options_for(DType::kF16, quick()));
  EXPECT_TRUE(run.step().applied);
  const Feeds before = run.committed();
  const StepResult bad = run.step(1e30f);  // finite in f32, infinite in f16
  expect_skipped(run, before, bad, 1);
  EXPECT_EQ(run.session().attempted_steps(), 2);
  EXPECT_EQ(bad.loss_scale, 512);
  const StepResult good = run.step();
  EXPECT_TRUE(good.applied);
  EXPECT_TRUE(std::isfinite(good.loss));
  EXPECT_EQ(run.session().applied_steps(), 2);
  EXPECT_EQ(run.session().attempted_steps(), 3);
  expect_moved(before, run.committed());
}

TEST(PlantedOverflow, InTheBackwardPass) {
  LossScaler scaler = quick();
  scaler.init = 16777216.0f;  // times a gradient of some 0.1 is above the 65504 of f16
  scaler.down = 1.0f / 4096;
  Training run(options_for(DType::kF16, scaler));
  const Feeds before = run.committed();
  const StepResult bad = run.step();
  EXPECT_TRUE(std::isfinite(bad.loss)) << "the forward pass has no overflow";
  expect_skipped(run, before, bad, 0);
  EXPECT_EQ(bad.loss_scale, 4096);
  EXPECT_TRUE(run.step().applied);
  expect_moved(before, run.committed());
}

TEST(PlantedOverflow, ThreeStepsRunning) {
  Training run(options_for(DType::kF16, quick()));
  EXPECT_TRUE(run.step().applied);
  const Feeds before = run.committed();
  const Feeds random = run.states({StateKind::kRandom});
  double scale = 1024;
  for (int i = 0; i < 3; ++i) {
    const StepResult bad = run.overflow();
    expect_skipped(run, before, bad, 1);
    scale /= 2;
    EXPECT_EQ(bad.loss_scale, scale);
  }
  EXPECT_EQ(run.session().attempted_steps(), 4);
  EXPECT_FALSE(identical(random.at("attempted_step"),
                         run.states({StateKind::kRandom}).at("attempted_step")));
  for (int i = 0; i < 4; ++i) {
    const StepResult good = run.step();
    EXPECT_TRUE(good.applied);
    EXPECT_TRUE(std::isfinite(good.loss));
  }
  EXPECT_EQ(run.session().applied_steps(), 5);
  EXPECT_EQ(run.step().loss_scale, 2 * scale);
}

TEST(PlantedOverflow, TrainingGoesOnAsIfTheStepHadNotBeen) {
  // Without the dropout nothing depends on the attempted step: the skipped one leaves no trace but
  // the scale, a power of two.
  const auto without_dropout = [] {
    std::string text(kNet);
    const size_t from = text.find("   d = Dropout"), to = text.find("   y = ");
    text.replace(from, to - from, "   d = Neg (r)\n");
    return Session(compile_model(model_of(text), options_for(DType::kBF16)).model, {.threads = 1});
  };
  Session plain = without_dropout(), disturbed = without_dropout();
  const auto feed = [](Session& session, float factor) {
    return session.step(std::vector<Tensor>{images(factor), labels()});
  };
  for (int i = 0; i < 4; ++i) {
    feed(plain, 1.0f);
    EXPECT_FALSE(feed(disturbed, std::numeric_limits<float>::infinity()).applied);
    feed(disturbed, 1.0f);
  }
  for (const StateEntry& entry : plain.state().entries()) {
    if (entry.kind == StateKind::kRandom) continue;
    const StateEntry* other = disturbed.state().find(entry.name);
    ASSERT_NE(other, nullptr) << entry.name;
    EXPECT_TRUE(identical(plain.state().get(entry), disturbed.state().get(*other))) << entry.name;
  }
}

TEST(PlantedOverflow, OneBadMicroBatchSkipsTheWholeUpdate) {
  CompileOptions options = options_for(DType::kF16, quick());
  options.train.accumulation = 2;
  Training run(options);
  EXPECT_FALSE(run.step().updated);
  EXPECT_TRUE(run.step().applied);
  const Feeds before = run.committed();
  EXPECT_FALSE(run.overflow().updated);
  EXPECT_EQ(run.step().loss_scale, 512);  // S moves when the window ends, not inside
  EXPECT_EQ(run.session().applied_steps(), 1);
  Feeds after = run.committed();
  for (const auto& [name, tensor] : before) {
    if (name.starts_with("pending/")) continue;  // `apply` takes the committed ones back
    EXPECT_TRUE(identical(tensor, after.at(name))) << name;
  }
  EXPECT_FALSE(run.step().updated);
  const StepResult good = run.step();
  EXPECT_TRUE(good.applied) << "the bad sums are gone";
  EXPECT_TRUE(std::isfinite(good.loss));
}

struct Trace {
  const char* preset;
  const char* events;  // F: a finite step, I: one that overflows
  std::vector<double> scales;
};

// Golden traces: interval 4, first scale 1024, the value after each step.
const std::vector<Trace>& traces() {
  static const std::vector<double> kMixed = {1024, 1024, 1024, 2048, 1024, 1024, 1024, 1024, 2048,
                                             2048, 1024, 512,  512,  512,  512,  1024, 1024, 1024};
  static const std::vector<double> kBurst = {512, 256, 128, 64, 64, 64, 64, 128, 64, 64};
  static const std::vector<double> kTurns = {512, 512, 256, 256, 128, 128, 64, 64};
  static const std::vector<Trace> kTraces = {
      {"halfnote", "FFFFIFFFFFIIFFFFFF", kMixed},
      {"halfnote", "IIIIFFFFIF", kBurst},
      {"halfnote", "IFIFIFIF", kTurns},
      {"pytorch", "FFFFIFFFFFIIFFFFFF", kMixed},
      {"pytorch", "IIIIFFFFIF", kBurst},
      {"pytorch", "IFIFIFIF", kTurns},
      {"keras", "FFFFIFFFFFIIFFFFFF", kMixed},
      {"keras", "IIIIFFFFIF", kBurst},
      {"keras", "IFIFIFIF", kTurns},
  };
  return kTraces;
}

TEST(ScaleTraces, OfTheCompiledGraphFollowThePreset) {
  for (const Trace& trace : traces()) {
    SCOPED_TRACE(std::string(trace.preset) + " " + trace.events);
    Training run(options_for(DType::kF16, quick(scaler_preset(trace.preset))));
    std::vector<double> scales;
    int64_t applied = 0;
    for (const char* event = trace.events; *event != 0; ++event) {
      const StepResult result = *event == 'F' ? run.step() : run.overflow();
      EXPECT_EQ(result.applied, *event == 'F');
      applied += result.applied;
      scales.push_back(result.loss_scale);
    }
    EXPECT_EQ(scales, trace.scales);
    EXPECT_EQ(run.session().applied_steps(), applied);
    EXPECT_EQ(run.session().attempted_steps(), static_cast<int64_t>(trace.scales.size()));
  }
}

TEST(ScaleTraces, AStaticScaleStaysAndStillSkips) {
  LossScaler scaler = scaler_preset("static");
  scaler.init = 1024;
  Training run(options_for(DType::kF16, scaler));
  const Feeds before = run.committed();
  const StepResult bad = run.overflow();
  expect_skipped(run, before, bad, 0);
  EXPECT_EQ(bad.loss_scale, 1024);
  EXPECT_TRUE(run.step().applied);
}

TEST(ScaleTraces, HoldAtTheFloorAndGrowFasterUntilTheFirstOverflow) {
  LossScaler scaler = quick();
  scaler.init = 2;
  scaler.warmup_interval = 2;
  Training run(options_for(DType::kF16, scaler));
  EXPECT_EQ(run.step().loss_scale, 2);
  EXPECT_EQ(run.step().loss_scale, 4) << "two clean steps are enough before the first overflow";
  EXPECT_EQ(run.overflow().loss_scale, 2);
  EXPECT_EQ(run.overflow().loss_scale, 1);
  EXPECT_EQ(run.overflow().loss_scale, 1) << "min is 1";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.step().loss_scale, 1);
  EXPECT_EQ(run.step().loss_scale, 2) << "four clean steps after it";
}

const Graph& step_of(const Model& model) {
  for (const TrainingStep& step : model.training) {
    if (step.name == "step") return step.graph;
  }
  throw Error(ErrorCode::kInternal, "no step");
}

TEST(ScaleByPrecision, F16ScalesBf16ChecksF32DoesNeither) {
  struct Want {
    DType dtype;
    int checks, updates;
    bool scale;
  };
  for (const Want& want : {Want{DType::kF16, 1, 1, true}, Want{DType::kBF16, 1, 0, false},
                           Want{DType::kF32, 0, 0, false}}) {
    SCOPED_TRACE(short_name(want.dtype));
    const Model model = compile_model(model_of(kNet), options_for(want.dtype)).model;
    const Graph& step = step_of(model);
    EXPECT_THAT(step, HasOp("ai.halfnote.AllFinite", want.checks));
    EXPECT_THAT(step, HasOp("ai.halfnote.UpdateLossScale", want.updates));
    EXPECT_THAT(step, NoPathScalesTwice());
    EXPECT_EQ(step.find("loss_scale").valid(), want.scale);
    EXPECT_EQ(step.find("finite").valid(), want.checks == 1);
  }
}

TEST(ScaleByPrecision, Bf16SkipsWithoutAScale) {
  Training run(options_for(DType::kBF16));
  EXPECT_TRUE(run.step().applied);
  const Feeds before = run.committed();
  const StepResult bad = run.overflow();
  expect_skipped(run, before, bad, 1);
  EXPECT_EQ(bad.loss_scale, 1);
  EXPECT_TRUE(run.step().applied);
}

}  // namespace
}  // namespace halfnote::test
