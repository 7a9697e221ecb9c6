// Learning-rate schedules: what the step reports against the formulas, written out once more here.
#include <cmath>
#include <ostream>

#include "base/error.h"
#include "support.h"

namespace halfnote::test {
namespace {

struct ScheduleCase {
  std::string name;
  Schedule schedule;
};

/// What a failing test says of its parameter.
void PrintTo(const ScheduleCase& c, std::ostream* out) { *out << c.name; }

/// lr in double, of the number s of steps applied so far.
double expected_rate(double lr, const Schedule& c, int64_t s) {
  double factor = 1;
  const double since = std::max<double>(static_cast<double>(s - c.warmup), 0);
  const double progress = std::min(since / static_cast<double>(c.total - c.warmup), 1.0);
  const double low = c.final_factor;
  if (c.kind == "linear") factor = 1 - (1 - low) * progress;
  if (c.kind == "cosine") factor = low + (1 - low) * 0.5 * (1 + std::cos(M_PI * progress));
  if (c.kind == "step") {
    factor = std::pow(static_cast<double>(c.gamma),
                      std::floor(since / static_cast<double>(c.step_size)));
  }
  if (c.warmup > 0) {
    factor *= std::min(static_cast<double>(s + 1) / static_cast<double>(c.warmup), 1.0);
  }
  return lr * factor;
}

class Schedules : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(Schedules, RateFollowsTheFormula) {
  CompileOptions options = options_for("sgd");
  options.train.optimizer.lr = 0.05f;
  options.train.optimizer.schedule = GetParam().schedule;
  Session session = reference_session(mlp_model(), options);
  const std::vector<Tensor> batch = mlp_batch(4, 1);
  for (int64_t s = 0; s < 14; ++s) {
    const StepResult step = session.step(batch);
    ASSERT_TRUE(step.learning_rate.has_value());
    const double want = expected_rate(double{0.05f}, GetParam().schedule, s);
    // About ten f32 operations on numbers up to lr, and a cosine good to a few ulp of 1.
    EXPECT_NEAR(*step.learning_rate, want, 16 * 0x1p-24 * 0.05) << "step " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Schedules,
    ::testing::Values(
        ScheduleCase{"constant", {}}, ScheduleCase{"warmup", {.kind = "constant", .warmup = 4}},
        ScheduleCase{"linear", {.kind = "linear", .total = 10}},
        ScheduleCase{"linear_warmup",
                     {.kind = "linear", .warmup = 3, .total = 9, .final_factor = 0.1f}},
        ScheduleCase{"cosine", {.kind = "cosine", .total = 10}},
        ScheduleCase{"cosine_warmup",
                     {.kind = "cosine", .warmup = 5, .total = 12, .final_factor = 0.25f}},
        ScheduleCase{"step", {.kind = "step", .step_size = 4, .gamma = 0.5f}},
        ScheduleCase{"step_warmup", {.kind = "step", .warmup = 2, .step_size = 3, .gamma = 0.1f}}),
    [](const auto& test) { return test.param.name; });

TEST(Schedules, RefusesWhatHasNoMeaning) {
  const auto compiled_with = [](const Schedule& schedule) {
    CompileOptions options = options_for("sgd");
    options.train.optimizer.schedule = schedule;
    return compile_model(mlp_model(), options);
  };
  EXPECT_THROW(compiled_with({.kind = "linear"}), Error);
  EXPECT_THROW(compiled_with({.kind = "cosine", .warmup = 5, .total = 5}), Error);
  EXPECT_THROW(compiled_with({.kind = "step"}), Error);
  EXPECT_THROW(compiled_with({.kind = "exponential"}), Error);
}

TEST(Schedules, ASkippedStepKeepsTheRate) {
  CompileOptions options = options_for("sgd", DType::kF16);
  options.train.optimizer.schedule = {.kind = "linear", .total = 4};
  options.policy.scaler.init = 65536.0f;
  Session session = reference_session(mlp_model(), options);
  std::vector<Tensor> good = mlp_batch(4, 1), bad = mlp_batch(4, 1);
  bad[0] = Tensor::full(DType::kF32, {4, 6}, 1e30);  // infinite in f16
  const double first = *session.step(good).learning_rate;
  const StepResult skipped = session.step(bad);
  EXPECT_FALSE(skipped.applied);
  EXPECT_LT(*skipped.learning_rate, first);
  EXPECT_EQ(*session.step(good).learning_rate, *skipped.learning_rate);
  EXPECT_EQ(session.applied_steps(), 2);
  EXPECT_EQ(session.attempted_steps(), 3);
}

}  // namespace
}  // namespace halfnote::test
