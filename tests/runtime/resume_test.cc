// A run that was stopped and resumed is bit-identical to one that was not: states, losses, running
// accuracy, whatever the precision and wherever it stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/runtime/tiny_run.h"
#include "tests/runtime/train/support.h"

namespace halfnote {
namespace {

using test::TinyOptions;
using test::TinyRun;

constexpr int64_t kSteps = 17;  // of 5 an epoch

struct ResumeCase {
  const char* name;
  DType precision;
  int64_t accumulation;
  int64_t stop_after;
  float first_scale;
  friend std::ostream& operator<<(std::ostream& out, const ResumeCase& c) { return out << c.name; }
};

class Resume : public testing::TestWithParam<ResumeCase> {};

TrainerOptions to_the_end() {
  TrainerOptions options;
  options.steps = kSteps;
  return options;
}

TEST_P(Resume, IsBitIdentical) {
  const ResumeCase& c = GetParam();
  TinyOptions tiny;
  tiny.precision = c.precision;
  tiny.accumulation = c.accumulation;
  tiny.first_scale = c.first_scale;
  tiny.clip_norm = 1.0f;
  const Model artifact = test::tiny_artifact(tiny);
  const test::TempFolder folder;

  const TinyRun unbroken = test::tiny_run(artifact, folder / "unbroken", to_the_end());
  EXPECT_FALSE(unbroken.result.stopped);
  EXPECT_EQ(unbroken.result.steps, kSteps);

  const TinyRun first = test::tiny_run(artifact, folder / "broken", to_the_end(), c.stop_after);
  EXPECT_TRUE(first.result.stopped);
  EXPECT_EQ(first.result.steps, c.stop_after);
  TrainerOptions resume = to_the_end();
  resume.resume = true;
  const TinyRun second = test::tiny_run(artifact, folder / "broken", resume);
  EXPECT_FALSE(second.result.stopped);
  EXPECT_EQ(second.result.steps, kSteps);
  EXPECT_EQ(second.result.new_steps, kSteps - c.stop_after);
  EXPECT_EQ(second.result.skipped, unbroken.result.skipped);
  EXPECT_EQ(second.result.applied, unbroken.result.applied);
  EXPECT_EQ(second.losses, unbroken.losses);
  test::expect_same_states(second.states, unbroken.states);
  ASSERT_TRUE(second.result.evaluation && unbroken.result.evaluation);
  EXPECT_EQ(second.result.evaluation->loss, unbroken.result.evaluation->loss);
  EXPECT_EQ(second.result.evaluation->top1, unbroken.result.evaluation->top1);
}

INSTANTIATE_TEST_SUITE_P(
    EveryPlace, Resume,
    testing::Values(ResumeCase{"f32_mid_epoch", DType::kF32, 1, 7, 65536},
                    ResumeCase{"f32_epoch_end", DType::kF32, 1, 10, 65536},
                    ResumeCase{"f32_before_the_first_step", DType::kF32, 1, 0, 65536},
                    ResumeCase{"f32_inside_a_window", DType::kF32, 3, 7, 65536},
                    ResumeCase{"bf16_mid_epoch", DType::kBF16, 1, 7, 65536},
                    ResumeCase{"bf16_inside_a_window", DType::kBF16, 4, 6, 65536},
                    ResumeCase{"f16_mid_epoch", DType::kF16, 1, 7, 65536},
                    ResumeCase{"f16_inside_a_window", DType::kF16, 2, 7, 65536},
                    ResumeCase{"f16_after_a_skipped_step", DType::kF16, 1, 1, 16777216},
                    ResumeCase{"f16_skipped_window", DType::kF16, 2, 3, 1048576}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(ResumeRun, TheFirstStepsOfTheSkippedCasesAreSkipped) {
  TinyOptions tiny;
  tiny.precision = DType::kF16;
  tiny.first_scale = 16777216;
  const test::TempFolder folder;
  TrainerOptions options;
  options.steps = 12;
  const TinyRun run = test::tiny_run(test::tiny_artifact(tiny), folder / "run", options);
  EXPECT_GE(run.result.skipped, 1);
  EXPECT_GE(run.result.applied, 1);
  EXPECT_EQ(run.result.skipped + run.result.applied, 12);
  tiny.accumulation = 2;
  tiny.first_scale = 1048576;
  options.steps = 2;
  test::expect_error(ErrorCode::kNumerics, {"none of the 1 updates"},
                     [&] { test::tiny_run(test::tiny_artifact(tiny), folder / "one", options); });
}

TEST(ResumeRun, StoppedTwiceAndSavedOftenIsTheSame) {
  const Model artifact = test::tiny_artifact({.precision = DType::kBF16});
  const test::TempFolder folder;
  const TinyRun unbroken = test::tiny_run(artifact, folder / "a", to_the_end());
  TrainerOptions options = to_the_end();
  options.save = {2, 0};
  options.keep = 1;
  test::tiny_run(artifact, folder / "b", options, 3);
  options.resume = true;
  test::tiny_run(artifact, folder / "b", options, 11);
  const TinyRun last = test::tiny_run(artifact, folder / "b", options);
  EXPECT_EQ(last.losses, unbroken.losses);
  test::expect_same_states(last.states, unbroken.states);
}

TEST(ResumeRun, AKilledRunGoesOnFromItsLastCheckpoint) {
  // What was trained and logged after the checkpoint is done again, bit for bit.
  const Model artifact = test::tiny_artifact({});
  const test::TempFolder folder;
  TrainerOptions options = to_the_end();
  options.save = {4, 0};
  const TinyRun unbroken = test::tiny_run(artifact, folder / "run", options);
  std::filesystem::remove_all(folder / "run/checkpoints/step-00000017");
  options.resume = true;
  const TinyRun again = test::tiny_run(artifact, folder / "run", options);
  EXPECT_EQ(again.result.new_steps, 1);
  EXPECT_EQ(again.losses, unbroken.losses);
  test::expect_same_states(again.states, unbroken.states);
}

TEST(ResumeRun, ADamagedNewestCheckpointGivesWayToTheOneBefore) {
  const Model artifact = test::tiny_artifact({});
  const test::TempFolder folder;
  TrainerOptions options = to_the_end();
  const TinyRun unbroken = test::tiny_run(artifact, folder / "run", options);
  const std::string file = folder / "run/checkpoints/step-00000017/state.safetensors";
  std::string bytes = test::read_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::write_bytes(file, bytes);
  options.resume = true;
  const TinyRun again = test::tiny_run(artifact, folder / "run", options);
  EXPECT_EQ(again.result.new_steps, 2);  // from the end of epoch 3
  test::expect_same_states(again.states, unbroken.states);
}

TEST(ResumeRun, AFinishedRunHasNothingToDo) {
  const Model artifact = test::tiny_artifact({});
  const test::TempFolder folder;
  TrainerOptions options = to_the_end();
  const TinyRun done = test::tiny_run(artifact, folder / "run", options);
  options.resume = true;
  const TinyRun again = test::tiny_run(artifact, folder / "run", options);
  EXPECT_EQ(again.result.new_steps, 0);
  EXPECT_FALSE(again.result.stopped);
  test::expect_same_states(again.states, done.states);
  options.steps = kSteps + 3;  // a longer run goes on
  EXPECT_EQ(test::tiny_run(artifact, folder / "run", options).result.new_steps, 3);
}

TEST(ResumeRun, OtherArithmeticIsAWarning) {
  Checkpoint checkpoint;
  RunIdentity identity;
  identity.arithmetic = "2 threads, avx512_core_bf16";
  checkpoint.extra = R"({"arithmetic": "2 threads, avx512_core_bf16"})";
  EXPECT_EQ(arithmetic_warning(checkpoint, identity), "");
  checkpoint.extra = R"({"arithmetic": "4 threads, avx2"})";
  EXPECT_THAT(arithmetic_warning(checkpoint, identity),
              testing::AllOf(testing::HasSubstr("4 threads, avx2"),
                             testing::HasSubstr(identity.arithmetic)));
  checkpoint.extra = "{}";
  EXPECT_THAT(arithmetic_warning(checkpoint, identity), testing::HasSubstr("unknown"));
}

TEST(ResumeRun, AnotherRunIsRefused) {
  const Model artifact = test::tiny_artifact({});
  const test::TempFolder folder;
  TrainerOptions options = to_the_end();
  test::tiny_run(artifact, folder / "run", options, 6);
  test::expect_error(ErrorCode::kUsage, {"holds another run", "--resume"},
                     [&] { test::tiny_run(artifact, folder / "run", options); });
  options.resume = true;
  test::expect_error(ErrorCode::kCheckpoint, {"another artifact"}, [&] {
    test::tiny_run(test::tiny_artifact({.lr = 0.1f}), folder / "run", options);
  });
  options.seed = 1;
  test::expect_error(ErrorCode::kCheckpoint, {"another seed", "expected 0, got 1"},
                     [&] { test::tiny_run(artifact, folder / "run", options); });
  test::expect_error(ErrorCode::kCheckpoint, {"no checkpoint"},
                     [&] { test::tiny_run(artifact, folder / "other", options); });
  EXPECT_FALSE(std::filesystem::exists(folder / "other"));
}

TEST(ResumeRun, AWrongPositionIsRefused) {
  const Model artifact = test::tiny_artifact({.accumulation = 2});
  Session session(artifact, {1, {}, {}});
  const RunIdentity identity{"hash", "data", 22, 4, 0};
  const RunPosition position{.step = 3, .pending = 1, .data = {0, 12}};
  const Checkpoint good = make_checkpoint(session, identity, position);
  EXPECT_EQ(restore_checkpoint(session, good, identity, "here").data.sample, 12);
  EXPECT_EQ(session.pending(), 1);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {R"("pending":1)", R"("pending":2)"},   {R"("pending":1)", R"("pending":-1)"},
      {R"("sample":12)", R"("sample":23)"},   {R"("step":3)", R"("step":4)"},
      {R"("epoch":0)", R"("epoch":"0")"},     {R"("skipped":0)", R"("skipped":9)"},
      {R"("correct":0)", R"("correct":1)"},   {R"("seed":0)", R"("seed":-1)"},
      {R"("evaluated":-1)", R"("other":-1)"},
  };
  for (const auto& [from, to] : changes) {
    Checkpoint bad = good;
    const size_t at = bad.extra.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bad.extra.replace(at, from.size(), to);
    test::expect_error(ErrorCode::kCheckpoint, {"here"},
                       [&] { restore_checkpoint(session, bad, identity, "here"); });
  }
}

TEST(ResumeRun, StatesThatDoNotFitChangeNothing) {
  const Model artifact = test::tiny_artifact({});
  Session session(artifact, {1, {}, {}});
  const RunIdentity identity{"hash", "data", 22, 4, 0};
  Checkpoint checkpoint = make_checkpoint(session, identity, {});
  const Tensor before = session.state().get(*session.state().find("w1"));
  for (NamedTensor& tensor : checkpoint.tensors) {
    if (tensor.name == "w1") tensor.tensor = Tensor::full(DType::kF32, {6, 8}, 5);
    if (tensor.name == "w2") tensor.tensor = Tensor(DType::kF32, {3, 8});
  }
  test::expect_error(ErrorCode::kCheckpoint, {"w2", "f32[8,3]", "f32[3,8]"},
                     [&] { restore_checkpoint(session, checkpoint, identity, "here"); });
  EXPECT_TRUE(identical(session.state().get(*session.state().find("w1")), before));
  checkpoint = make_checkpoint(session, identity, {});
  checkpoint.tensors.push_back({"stranger", Tensor::scalar(1.0f)});
  test::expect_error(ErrorCode::kCheckpoint, {"stranger"},
                     [&] { restore_checkpoint(session, checkpoint, identity, "here"); });
  checkpoint.tensors.pop_back();
  checkpoint.tensors.pop_back();
  test::expect_error(ErrorCode::kCheckpoint, {"no such tensor"},
                     [&] { restore_checkpoint(session, checkpoint, identity, "here"); });
}

}  // namespace
}  // namespace halfnote
