// Profiles: self times that add up, rows that count every step, and outputs that parse.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "runtime/core/profile/output.h"
#include "support.h"

namespace halfnote::test {
namespace {

using ::testing::HasSubstr;

constexpr MachinePeak kPeak{1, 1e9, 2e9, 1e8};

Model compiled(DType precision, int64_t accumulation = 1) {
  CompileOptions options = options_for("adamw", precision);
  options.train.accumulation = accumulation;
  return compile_model(mlp_model(), options).model;
}

SessionOptions with(Profiler* profiler) {
  SessionOptions options;
  options.threads = 1;
  options.profiler = profiler;
  return options;
}

double sum_of_seconds(const std::vector<ProfileRow>& rows) {
  double sum = 0;
  for (const ProfileRow& row : rows) sum += row.seconds;
  return sum;
}

int64_t sum_of_calls(const std::vector<ProfileRow>& rows) {
  int64_t sum = 0;
  for (const ProfileRow& row : rows) sum += row.calls;
  return sum;
}

TEST(Profile, TimesAddUpAndEveryStepIsCounted) {
  Profiler profiler;
  Session session(compiled(DType::kBF16), with(&profiler));
  for (int i = 0; i < 6; ++i) session.step(mlp_batch(8, 1));
  ASSERT_EQ(profiler.programs().size(), 1u);
  const ProgramProfile& profile = *profiler.programs()[0];
  EXPECT_EQ(profile.runs(), 5);  // the first does not count
  EXPECT_EQ(profile.traced().size(), 3u);
  const ProfileTable table = tabulate(profile, kPeak);
  const auto steps = static_cast<int64_t>(profile.program().steps.size());
  double flops = 0;
  for (const ProgramStep& step : profile.program().steps) flops += step.flops;
  EXPECT_GT(flops, 0);
  EXPECT_EQ(table.flops, flops);
  EXPECT_GT(table.seconds, 0);
  EXPECT_LE(table.best_seconds, table.seconds);
  for (const auto* rows : {&table.kernels, &table.shapes}) {
    EXPECT_EQ(sum_of_calls(*rows), steps);
    // Both are sums of the same numbers in another order.
    EXPECT_NEAR(sum_of_seconds(*rows) + table.copies, table.seconds, 1e-12 * steps);
    for (size_t i = 1; i < rows->size(); ++i) EXPECT_GE((*rows)[i - 1].seconds, (*rows)[i].seconds);
  }
  EXPECT_GE(table.shapes.size(), table.kernels.size());
}

TEST(Profile, OneRunIsBetterThanNone) {
  Profiler profiler;
  Session session(compiled(DType::kF32), with(&profiler));
  session.prepare(std::vector<Shape>{{8, 6}, {8}});
  EXPECT_EQ(profile_text(profiler, kPeak).find("step:"), std::string::npos);
  session.step(mlp_batch(8, 1));
  EXPECT_EQ(profiler.programs()[0]->runs(), 1);
  EXPECT_THAT(profile_text(profiler, kPeak), HasSubstr("mean of 1 run, the first"));
}

TEST(Profile, ChangesNoResult) {
  Profiler profiler;
  Session profiled(compiled(DType::kBF16), with(&profiler));
  Session plain(compiled(DType::kBF16), with(nullptr));
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(profiled.step(mlp_batch(8, i)).loss, plain.step(mlp_batch(8, i)).loss);
  }
  expect_same(states_of(profiled), states_of(plain));
  EXPECT_TRUE(plain.program("step")->steps[0].input_types.empty());  // kept for profiles only
}

TEST(Profile, EveryProgramHasItsOwn) {
  Profiler profiler;
  Session session(compiled(DType::kF32, 2), with(&profiler));
  for (uint64_t i = 0; i < 8; ++i) session.step(mlp_batch(8, i));
  session.evaluate(mlp_batch(8, 0));
  std::map<std::string, int64_t> runs;
  for (const auto& profile : profiler.programs()) runs[profile->name()] = profile->runs();
  EXPECT_EQ(runs,
            (std::map<std::string, int64_t>{{"accumulate", 7}, {"apply", 3}, {"evaluate", 1}}));
}

TEST(Profile, JsonHasAllRowsAndWhyBetterKernelsRefused) {
  Profiler profiler;
  Session session(compiled(DType::kBF16), with(&profiler));
  for (int i = 0; i < 3; ++i) session.step(mlp_batch(8, 1));
  const auto json = nlohmann::json::parse(profile_json(profiler, kPeak));
  EXPECT_EQ(json["peak"]["bf16_flops"], 2e9);
  const auto& program = json["programs"][0];
  const ProfileTable table = tabulate(*profiler.programs()[0], kPeak);
  EXPECT_EQ(program["kernels"].size(), table.kernels.size());
  EXPECT_EQ(program["shapes"].size(), table.shapes.size());
  bool gemm = false;
  for (const auto& row : program["shapes"]) {
    if (row["op"] != "Gemm") continue;
    gemm = true;
    EXPECT_GT(row["flops"], 0);
    EXPECT_GT(row["bytes"], 0);
    EXPECT_THAT(row["shapes"].get<std::string>(), HasSubstr("bf16[8,"));
    EXPECT_THAT(row["refusals"].get<std::string>(), HasSubstr("of type bf16"));
  }
  EXPECT_TRUE(gemm);
}

TEST(Profile, TraceHasOneEventAStepWithoutGaps) {
  Profiler profiler;
  Session session(compiled(DType::kF32), with(&profiler));
  for (int i = 0; i < 3; ++i) session.step(mlp_batch(8, 1));
  const auto json = nlohmann::json::parse(profile_trace(profiler));
  const size_t steps = profiler.programs()[0]->program().steps.size();
  const auto& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 1 + 2 * (steps + 2));  // a name; two runs with their copies
  double before = events[1]["ts"];
  for (size_t i = 2; i < 2 + steps + 1; ++i) {
    EXPECT_EQ(events[i]["ph"], "X");
    EXPECT_NEAR(events[i]["ts"].get<double>(), before, 1e-3);  // microseconds
    EXPECT_GE(events[i]["dur"], 0);
    before = events[i]["ts"].get<double>() + events[i]["dur"].get<double>();
  }
  EXPECT_FALSE(events[2]["args"]["operands"].get<std::string>().empty());
}

TEST(Profile, PeakIsThatOfTheOperandsType) {
  ProgramStep step;
  step.flops = 1e9;
  step.input_types = {{DType::kF32, {10}, false}};
  EXPECT_EQ(peak_seconds(step, kPeak), 1);
  step.reads_16bit = true;
  step.input_types[0].dtype = DType::kBF16;
  EXPECT_EQ(peak_seconds(step, kPeak), 0.5);
  step.input_types[0].dtype = DType::kF16;  // computed in f32
  EXPECT_EQ(peak_seconds(step, kPeak), 1);
  step.flops = 0;
  step.input_types = {{DType::kF32, {100, 2}, false}, {}, {DType::kI64, {1}, true}};
  step.output_types = {{DType::kBF16, {100}, false}};
  EXPECT_EQ(operand_bytes(step), 800 + 8 + 200);
  EXPECT_EQ(peak_seconds(step, kPeak), 1008 / 1e8);
  EXPECT_EQ(operands_text(step), "f32[100,2] -> bf16[100]");
}

TEST(Profile, MeasuresThePeak) {
  const MachinePeak peak = measure_peak(1);
  EXPECT_EQ(peak.threads, 1);
  EXPECT_GT(peak.f32_flops, 1e8);  // any machine
  EXPECT_GT(peak.bf16_flops, 1e8);
  EXPECT_GT(peak.bytes, 1e8);
  EXPECT_THAT(to_string(peak), HasSubstr("(1 thread)"));
}

}  // namespace
}  // namespace halfnote::test
