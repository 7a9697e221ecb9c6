// Profiles of steps on a device: every node has its times, results are those without a profile, and
// a step that failed is not counted.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "passes/passes.h"
#include "runtime/core/profile/output.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"
#include "tests/cuda/random_batch.h"

namespace halfnote {
namespace {

const std::filesystem::path kModel =
    std::filesystem::path(test::source_folder()) / "tests/fixtures/models/mlp/model.onnx";

Session session_with(Profiler* profiler, int64_t accumulate = 1) {
  CompileOptions options;
  options.policy.dtype = DType::kBF16;
  options.train.accumulation = accumulate;
  options.train.loss_outputs = {"13"};
  SessionOptions session;
  session.device = test::tested_device();
  session.threads = 1;
  session.profiler = profiler;
  if (profiler != nullptr) profiler->set_device(session.device);
  return Session(compile_file(kModel, options).model, session);
}

std::vector<Tensor> batch_for(const Session& session, uint32_t seed, int64_t label = 3) {
  return test::random_batch(session, 4, seed, [=](std::mt19937&) { return label; });
}

TEST(DeviceProfile, HasEveryNodeAndItsBytes) {
  Profiler profiler;
  Session session = session_with(&profiler);
  for (uint32_t i = 0; i < 5; ++i) session.step(batch_for(session, i));
  ASSERT_EQ(profiler.programs().size(), 1u);
  const ProgramProfile& profile = *profiler.programs()[0];
  EXPECT_EQ(profile.runs(), 4);  // the first does not count
  const ProfileTable table = tabulate(profile, {});
  int64_t calls = 0;
  double seconds = table.copies, bytes = 0, wanted_bytes = 0, wanted_flops = 0;
  for (const ProfileRow& row : table.shapes) {
    calls += row.calls;
    seconds += row.seconds;
    bytes += row.bytes;
    EXPECT_GE(row.best_seconds, 0);
    EXPECT_LE(row.best_seconds, row.seconds);
  }
  for (const ProgramStep& step : profile.program().steps) {
    wanted_bytes += operand_bytes(step);
    wanted_flops += step.flops;
  }
  EXPECT_EQ(calls, static_cast<int64_t>(profile.program().steps.size()));
  EXPECT_GT(table.seconds, 0);
  EXPECT_NEAR(seconds, table.seconds, 1e-12 * static_cast<double>(calls));
  EXPECT_EQ(bytes, wanted_bytes);
  EXPECT_EQ(table.flops, wanted_flops);
  for (const ProgramProfile::Run& run : profile.traced()) {
    double before = run.begin;
    ASSERT_EQ(run.ends.size(), profile.program().steps.size() + 1);
    for (const double end : run.ends) {
      EXPECT_GE(end, before);
      before = end;
    }
  }
}

TEST(DeviceProfile, ChangesNoResult) {
  Profiler profiler;
  Session profiled = session_with(&profiler, 2), plain = session_with(nullptr, 2);
  for (uint32_t i = 0; i < 6; ++i) {
    const std::vector<Tensor> inputs = batch_for(plain, i);
    EXPECT_EQ(profiled.step(inputs).loss, plain.step(inputs).loss) << i;
  }
  for (const StateEntry& entry : plain.state().entries()) {
    const Tensor wanted = plain.state().get(entry);
    const Tensor got = profiled.state().get(*profiled.state().find(entry.name));
    for (int64_t i = 0; i < wanted.size(); ++i)
      ASSERT_EQ(got.at_as_double(i), wanted.at_as_double(i)) << entry.name;
  }
  std::map<std::string, int64_t> runs;
  for (const auto& profile : profiler.programs()) runs[profile->name()] = profile->runs();
  EXPECT_EQ(runs, (std::map<std::string, int64_t>{{"accumulate", 5}, {"apply", 2}}));
}

TEST(DeviceProfile, TwoStepsOnTheirWayAreTwoRuns) {
  Profiler profiler;
  Session session = session_with(&profiler);
  session.start(batch_for(session, 1));
  session.start(batch_for(session, 2));
  session.finish();
  session.finish();
  EXPECT_EQ(profiler.programs()[0]->runs(), 1);  // the first does not count
}

TEST(DeviceProfile, AStepThatFailedDoesNotCount) {
  Profiler profiler;
  Session session = session_with(&profiler);
  session.step(batch_for(session, 1));
  session.step(batch_for(session, 2));
  EXPECT_THROW(session.step(batch_for(session, 3, 1000)), Error);
  EXPECT_EQ(profiler.programs()[0]->runs(), 1);
  session.step(batch_for(session, 4));
  EXPECT_EQ(profiler.programs()[0]->runs(), 2);
}

TEST(DeviceProfile, SaysWhatItsTimesAre) {
  Profiler profiler;
  Session session = session_with(&profiler);
  for (uint32_t i = 0; i < 3; ++i) session.step(batch_for(session, i));
  const std::string text = profile_text(profiler, {});
  EXPECT_NE(text.find("profile of " + test::tested_device() + " by its own clock"),
            std::string::npos);
  EXPECT_EQ(text.find("matmul peak"), std::string::npos);
  const auto json = nlohmann::json::parse(profile_json(profiler, {}));
  EXPECT_EQ(json["device"], test::tested_device());
  EXPECT_EQ(json["programs"][0]["steps"], profiler.programs()[0]->program().steps.size());
  const auto trace = nlohmann::json::parse(profile_trace(profiler));
  EXPECT_GT(trace["traceEvents"].size(), profiler.programs()[0]->program().steps.size());
}

}  // namespace
}  // namespace halfnote
