// The loop itself: what it learns, when it evaluates and saves, when it gives up.
#include "runtime/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "compiler/ir/text.h"
#include "passes/compile.h"
#include "runtime/train/checkpoint.h"
#include "tests/runtime/tiny_run.h"
#include "tests/runtime/train/support.h"

namespace halfnote {
namespace {

using test::TinyOptions;
using test::TinyRun;
using testing::ElementsAre;
using testing::HasSubstr;

TrainerOptions epochs(int64_t count) {
  TrainerOptions options;
  options.epochs = count;
  return options;
}

std::vector<std::string> checkpoints_in(const std::filesystem::path& run) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Trainer, LearnsInEveryPrecision) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    const test::TempFolder folder;
    const TinyRun run =
        test::tiny_run(test::tiny_artifact({.precision = precision}), folder / "run", epochs(20));
    ASSERT_TRUE(run.result.evaluation && run.result.evaluation->top1);
    // The classes differ by 1 in two features of noise ±0.5: nearly all can be told apart.
    EXPECT_GE(*run.result.evaluation->top1, 0.9) << short_name(precision);
    EXPECT_EQ(run.result.evaluation->samples, 22);
    EXPECT_EQ(*run.result.evaluation->top5, 1.0);
    EXPECT_EQ(run.result.steps, 100);
    EXPECT_EQ(run.losses.size(), 100u);
  }
}

TEST(Trainer, SavesAndKeepsAsAsked) {
  const Model artifact = test::tiny_artifact({});
  const test::TempFolder folder;
  test::tiny_run(artifact, folder / "epochs", epochs(4));
  EXPECT_THAT(checkpoints_in(folder / "epochs"),
              ElementsAre("step-00000010", "step-00000015", "step-00000020"));
  TrainerOptions options = epochs(3);
  options.save = {4, 0};
  options.keep = 0;
  test::tiny_run(artifact, folder / "steps", options);
  EXPECT_THAT(checkpoints_in(folder / "steps"),
              ElementsAre("step-00000004", "step-00000008", "step-00000012", "step-00000015"));
  options.save = {};
  test::tiny_run(artifact, folder / "end", options);
  EXPECT_THAT(checkpoints_in(folder / "end"), ElementsAre("step-00000015"));
}

TEST(Trainer, EvaluatesAndLogsAsAsked) {
  const Model artifact = test::tiny_artifact({.precision = DType::kF16, .clip_norm = 1.0f});
  const test::TempFolder folder;
  TrainerOptions options = epochs(2);
  options.evaluate = {4, 0};
  options.log_every = 5;
  test::tiny_run(artifact, folder / "run", options);
  const std::string metrics = test::read_bytes(folder / "run/metrics.jsonl");
  std::vector<std::string> lines;
  std::istringstream in(metrics);
  for (std::string line; std::getline(in, line);)
    lines.push_back(line.substr(0, line.find(",\"l")));
  EXPECT_THAT(lines, ElementsAre(HasSubstr("{\"step\":1,\"epoch\":1"),
                                 HasSubstr("{\"step\":4,\"event\":\"evaluation\""),
                                 HasSubstr("{\"step\":5,\"epoch\":1"),
                                 HasSubstr("{\"step\":8,\"event\":\"evaluation\""),
                                 HasSubstr("{\"step\":10,\"epoch\":2"),
                                 HasSubstr("{\"step\":10,\"event\":\"evaluation\"")));
  for (const char* field :
       {"\"loss\":", "\"accuracy\":", "\"loss_scale\":65536", "\"finite\":true", "\"skipped\":0",
        "\"applied\":10", "\"lr\":", "\"grad_norm\":", "\"samples_per_second\":", "\"data_wait\":",
        "\"eval_loss\":", "\"eval_top1\":", "\"eval_top5\":", "\"eval_samples\":22"}) {
    EXPECT_THAT(metrics, HasSubstr(field));
  }
}

TEST(Trainer, ASkippedStepAlwaysHasItsLine) {
  const test::TempFolder folder;
  TrainerOptions options = epochs(2);
  options.log_every = 1000;
  const TinyRun run =
      test::tiny_run(test::tiny_artifact({.precision = DType::kF16, .first_scale = 16777216}),
                     folder / "run", options);
  const std::string metrics = test::read_bytes(folder / "run/metrics.jsonl");
  int64_t skipped = 0;
  for (size_t at = 0; (at = metrics.find("\"finite\":false", at)) != std::string::npos; ++at) {
    ++skipped;
  }
  EXPECT_GE(skipped, 1);
  EXPECT_EQ(skipped, run.result.skipped);
}

TEST(Trainer, AnF32LossThatIsNoNumberEndsTheRun) {
  const test::TempFolder folder;
  TrainerOptions options = epochs(40);
  options.save = {1, 0};
  options.keep = 0;
  const Model artifact = test::tiny_artifact({.lr = 1e30f});
  const Error error = test::caught([&] { test::tiny_run(artifact, folder / "run", options); });
  EXPECT_EQ(error.code(), ErrorCode::kNumerics);
  EXPECT_THAT(error.what(), HasSubstr("at step "));
  EXPECT_THAT(error.what(), HasSubstr("--lr"));
  EXPECT_THAT(test::read_bytes(folder / "run/metrics.jsonl"), HasSubstr("\"event\":\"diverged\""));
  // The checkpoints are those of the steps before.
  const size_t saved = checkpoints_in(folder / "run").size();
  EXPECT_THAT(error.what(), HasSubstr("at step " + std::to_string(saved + 1)));
}

/// Data whose every batch overflows, in f16 and in the products of bf16.
TinyRun run_on_huge_numbers(const Model& artifact, const std::filesystem::path& folder,
                            int64_t steps = 200, const std::string& device = "cpu") {
  SessionOptions where{1, {}, {}};
  where.device = device;
  Session session(artifact, where);
  Dataset data = test::tiny_data(8);
  Tensor x(DType::kF32, {8, 6});
  for (float& value : x.mutable_data<float>()) value = 3e38f;
  data = Dataset("huge", {{"x", x}, data.fields()[1]});
  TrainerOptions options;
  options.steps = steps;
  options.run_folder = folder;
  options.batch = 4;
  Trainer trainer(session, InputMap(data, test::inputs_of(session)), std::nullopt, options);
  trainer.plan();
  trainer.open();
  Progress progress = test::silent_progress();
  return {trainer.run(progress), {}, {}};
}

TEST(Trainer, AnOverflowAtTheFloorIsDiagnosed) {
  const test::TempFolder folder;
  // 2^16 falls to 1 in 16 skips.
  const auto run = [&](const char* on_floor, const char* name, int64_t accumulation = 1) {
    run_on_huge_numbers(
        test::tiny_artifact(
            {.precision = DType::kF16, .accumulation = accumulation, .on_floor = on_floor}),
        folder / name);
  };
  test::expect_error(ErrorCode::kNumerics,
                     {"the loss of step 17 is", "which no loss scale changes",
                      "\"x\" is too large for f16", "--normalize"},
                     [&] { run("diagnose", "diagnosed"); });
  test::expect_error(ErrorCode::kNumerics, {"step 34", "\"x\" is too large for f16"},
                     [&] { run("diagnose", "accumulated", 2); });
  test::expect_error(ErrorCode::kNumerics,
                     {"step 17", "loss scale 1", "the forward pass itself", "--fp32-node"},
                     [&] { run("raise", "raised"); });
}

/// There no node is watched, and the message says where one is.
TEST(Trainer, AnOverflowAtTheFloorOnADeviceIsTold) {
  const test::TempFolder folder;
  test::expect_error(ErrorCode::kNumerics,
                     {"the loss of step 17 is", "which no loss scale changes", "loss scale 1",
                      "the forward pass itself", "--fp32-node", "--device cpu"},
                     [&] {
                       run_on_huge_numbers(
                           test::tiny_artifact({.precision = DType::kF16, .on_floor = "diagnose"}),
                           folder / "run", 200, "cuda-emulated");
                     });
}

/// As in PyTorch: the mean over no label is NaN, the gradients are 0.
TEST(Trainer, ABatchWhoseEveryLabelIsIgnoredDoesNotEndTheRun) {
  for (const DType precision : {DType::kF32, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(short_name(precision));
    const test::TempFolder folder;
    Session session(test::tiny_artifact({.precision = precision}), {1, {}, {}});
    Dataset data = test::tiny_data(8);
    Tensor labels(DType::kI64, {8});
    const std::vector<int64_t> values = {-100, -100, -100, -100, 0, -100, 2, 1};
    std::copy(values.begin(), values.end(), labels.mutable_data<int64_t>().begin());
    data = Dataset("padded", {data.fields()[0], {"labels", labels}});
    TrainerOptions options;
    options.steps = 2;
    options.shuffle = false;
    options.run_folder = folder / "run";
    options.batch = 4;
    Trainer trainer(session, InputMap(data, test::inputs_of(session)), std::nullopt, options);
    trainer.plan();
    trainer.open();
    Progress progress = test::silent_progress();
    const TrainResult result = trainer.run(progress);
    EXPECT_EQ(result.applied, 2);
    EXPECT_EQ(result.skipped, 0);
    EXPECT_TRUE(std::isfinite(result.loss.value()));
    EXPECT_THAT(test::read_bytes(folder / "run/metrics.jsonl"), HasSubstr("\"loss\":\"NaN\""));
  }
}

/// No output gives the scores, and the labels lose their first place.
TEST(Trainer, NorWhereTheLossStandsInTheModel) {
  CompileOptions compiled;
  compiled.train.loss_outputs = {"loss"};
  const Model artifact = compile_model(parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[N,6] x, int64[N,3] labels) => (float loss)
<float[6,2] w = {1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1}, int64[1] one = {1}, int64[1] three = {3},
 int64[3] spread = {1, 2, 1}, int64[1] flat = {-1}> {
  h = MatMul (x, w)
  u = Unsqueeze (h, one)
  e = Expand (u, spread)
  later = Slice (labels, one, three, one)
  scores = Transpose <perm = [0, 2, 1]> (e)
  loss = SoftmaxCrossEntropyLoss <ignore_index: int = -100> (scores, later)
})",
                                                   "test"),
                                       compiled)
                             .model;
  const test::TempFolder folder;
  Session session(artifact, {1, {}, {}});
  Tensor labels(DType::kI64, {8, 3});
  const auto values = labels.mutable_data<int64_t>();
  std::fill(values.begin(), values.end(), -100);
  // Outside of what is sliced, in both batches.
  for (const size_t i : {0, 3, 9, 12, 15}) values[i] = 1;
  values[13] = values[14] = 0;  // of the second batch
  const Dataset data("padded", {test::tiny_data(8).fields()[0], {"labels", labels}});
  TrainerOptions options;
  options.steps = 2;
  options.shuffle = false;
  options.run_folder = folder / "run";
  options.batch = 4;
  const InputMap map(data, test::inputs_of(session));
  Trainer trainer(session, map, map, options);
  trainer.plan();
  trainer.open();
  Progress progress = test::silent_progress();
  const TrainResult result = trainer.run(progress);
  EXPECT_EQ(result.applied, 2);
  EXPECT_TRUE(std::isfinite(result.loss.value()));
  ASSERT_TRUE(result.evaluation && result.evaluation->loss);
  EXPECT_TRUE(std::isfinite(*result.evaluation->loss));
  EXPECT_THAT(test::read_bytes(folder / "run/metrics.jsonl"), HasSubstr("\"loss\":\"NaN\""));
}

TEST(Trainer, AWeightThatIsNoNumberEndsTheRunAtOnce) {
  for (const DType precision : {DType::kF32, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(short_name(precision));
    const test::TempFolder folder;
    Model artifact = test::tiny_artifact({.precision = precision});
    for (TrainingStep& step : artifact.training) {
      Value& weight = step.graph.value(step.graph.find("w1"));
      weight.tensor = Tensor::full(DType::kF32, weight.tensor.shape(), std::nan(""));
    }
    TrainerOptions options;
    options.steps = 40;
    test::expect_error(ErrorCode::kNumerics,
                       {"the loss is nan at step 1", "\"w1\" held a NaN or Inf before"},
                       [&] { test::tiny_run(artifact, folder / "run", options); });
  }
}

/// The root of 0 has an infinite gradient, times 0; the guard hides what comes of it.
TEST(Trainer, AWeightLostBehindAFiniteLossIsNeverSaved) {
  const test::TempFolder folder;
  CompileOptions compiled;
  compiled.train.loss_outputs = {"loss"};
  const Model artifact = compile_model(parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[N,6] x) => (float loss) <float[6] w = {1, 2, 3, 4, 5, 6}, float zero = {0}> {
  m = Mul (x, w)
  n = Mul (m, zero)
  r = Sqrt (n)
  lost = IsNaN (r)
  kept = Where (lost, zero, r)
  loss = ReduceMean <keepdims = 0> (kept)
})",
                                                   "guarded"),
                                       compiled)
                             .model;
  Session session(artifact, {1, {}, {}});
  TrainerOptions options;
  options.steps = 3;
  options.batch = 4;
  options.run_folder = folder / "run";
  const Dataset data("numbers", {{"x", Tensor::full(DType::kF32, {8, 6}, 1.0)}});
  Trainer trainer(session, InputMap(data, test::inputs_of(session)), std::nullopt, options);
  trainer.plan();
  trainer.open();
  Progress progress = test::silent_progress();
  test::expect_error(ErrorCode::kNumerics, {"\"w\" holds a NaN or Inf", "though the loss is 0"},
                     [&] { trainer.run(progress); });
  EXPECT_FALSE(std::filesystem::exists(folder / "run/LATEST"));
}

TEST(Trainer, ARunWhoseEveryUpdateWasSkippedFails) {
  const test::TempFolder folder;
  test::expect_error(ErrorCode::kNumerics, {"none of the 3 updates", "--loss-scale"}, [&] {
    run_on_huge_numbers(test::tiny_artifact({.precision = DType::kF16}), folder / "run", 3);
  });
}

/// bf16 has no loss scale that could be made smaller.
TEST(Trainer, WithoutALossScaleNoHintNamesOne) {
  const test::TempFolder folder;
  const Model artifact = test::tiny_artifact({.precision = DType::kBF16});
  for (const int64_t steps : {3, 60}) {
    const Error error =
        test::caught([&] { run_on_huge_numbers(artifact, folder / std::to_string(steps), steps); });
    EXPECT_EQ(error.code(), ErrorCode::kNumerics);
    EXPECT_THAT(error.what(), HasSubstr(steps == 3 ? "none of the 3 updates" : "last 50 updates"));
    EXPECT_THAT(error.what(), HasSubstr("range of the data (--normalize)"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("scale")));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("--precision bf16")));
  }
}

TEST(Trainer, ARunWhoseEveryLabelIsIgnoredFails) {
  for (const DType precision : {DType::kF32, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(short_name(precision));
    const test::TempFolder folder;
    Session session(test::tiny_artifact({.precision = precision}), {1, {}, {}});
    Dataset data = test::tiny_data(8);
    data = Dataset("padding", {data.fields()[0], {"labels", Tensor::full(DType::kI64, {8}, -100)}});
    TrainerOptions options;
    options.steps = 3;
    options.run_folder = folder / "run";
    options.batch = 4;
    Trainer trainer(session, InputMap(data, test::inputs_of(session)), std::nullopt, options);
    trainer.plan();
    trainer.open();
    Progress progress = test::silent_progress();
    test::expect_error(ErrorCode::kNumerics,
                       {"the loss of all 3 steps was NaN", "only labels that it ignores"},
                       [&] { trainer.run(progress); });
  }
}

TEST(Trainer, ADiagnosisNamesTheNodeAndKeepsTheStates) {
  Session session(test::tiny_artifact({.precision = DType::kF16}), {1, {}, {}});
  const Dataset data = test::tiny_data(4);
  std::vector<Tensor> batch = {data.fields()[0].data.deep_copy(), data.fields()[1].data};
  session.step(batch);
  EXPECT_FALSE(session.diagnose(batch));
  // 6 features of 60000 each: finite in f16, but not their product with the weights.
  for (float& value : batch[0].mutable_data<float>()) value = 60000;
  const StateEntry* weight = session.state().find("w1");
  session.state().set(*weight, Tensor::full(DType::kF32, weight->shape, 2));
  std::vector<Tensor> before;
  for (const StateEntry& entry : session.state().entries())
    before.push_back(session.state().get(entry));
  const auto found = session.diagnose(batch);
  ASSERT_TRUE(found);
  EXPECT_THAT(to_string(*found), HasSubstr("(Gemm) makes the first Inf"));
  EXPECT_THAT(advice(*found), HasSubstr("--fp32-node '" + found->node + "'"));
  size_t i = 0;
  for (const StateEntry& entry : session.state().entries()) {
    EXPECT_TRUE(identical(session.state().get(entry), before[i++])) << entry.name;
  }
}

TEST(Trainer, GivesUpWhenNoLossScaleHelps) {
  const test::TempFolder folder;
  // 2^16 falls to 1 in 16 skips, and at 1 it is given 50 more.
  test::expect_error(
      ErrorCode::kNumerics,
      {"losses of the last 50 updates up to step 66", "which no loss scale changes"}, [&] {
        run_on_huge_numbers(test::tiny_artifact({.precision = DType::kF16, .on_floor = "hold"}),
                            folder / "f16");
      });
  test::expect_error(ErrorCode::kNumerics, {"last 50 updates up to step 50"}, [&] {
    run_on_huge_numbers(test::tiny_artifact({.precision = DType::kBF16}), folder / "bf16");
  });
  // A scale without a bound: below 1 it is not the scale that overflows.
  test::expect_error(ErrorCode::kNumerics, {"last 50 updates up to step 66"}, [&] {
    run_on_huge_numbers(test::tiny_artifact({.precision = DType::kF16, .least_scale = 0}),
                        folder / "unbounded");
  });
  test::expect_error(ErrorCode::kNumerics, {"last 50 updates up to step 132"}, [&] {
    run_on_huge_numbers(
        test::tiny_artifact({.precision = DType::kF16, .accumulation = 2, .on_floor = "hold"}),
        folder / "accumulated");
  });
}

TEST(Trainer, RefusesRunsThatMakeNoSense) {
  const Model artifact = test::tiny_artifact({});
  const test::TempFolder folder;
  const auto expect_refusal = [&](TrainerOptions options, const std::string& part) {
    test::expect_error(ErrorCode::kUsage, {part},
                       [&] { test::tiny_run(artifact, folder / "run", options); });
  };
  TrainerOptions options;
  expect_refusal(options, "neither");
  options.epochs = options.steps = 1;
  expect_refusal(options, "both");
  options.steps = 0;
  options.log_every = 0;
  expect_refusal(options, "--log-every");
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(Trainer, RefusesAnArtifactWithoutAnOptimizer) {
  Model artifact = test::tiny_artifact({});
  for (TrainingStep& step : artifact.training) {
    while (!step.graph.states().empty()) step.graph.remove_state(0);
  }
  const test::TempFolder folder;
  test::expect_error(ErrorCode::kModel, {"no optimizer"},
                     [&] { test::tiny_run(artifact, folder / "run", epochs(1)); });
}

TEST(Trainer, RefusesLabelsOutsideTheClassesBeforeTheFirstStep) {
  const Model artifact = test::tiny_artifact({});
  Session session(artifact, {1, {}, {}});
  Dataset data = test::tiny_data(8);
  Tensor labels = data.fields()[1].data.deep_copy();
  labels.mutable_data<int64_t>()[5] = 3;
  data = Dataset("wrong", {data.fields()[0], {"labels", labels}});
  TrainerOptions options;
  options.steps = 1;
  options.batch = 4;
  Trainer trainer(session, InputMap(data, test::inputs_of(session)), std::nullopt, options);
  test::expect_error(ErrorCode::kData, {"sample 5", "0 to 2"}, [&] { trainer.plan(); });
}

TEST(Trainer, OneProcessAtATimeInARunFolder) {
  const Model artifact = test::tiny_artifact({});
  const test::TempFolder folder;
  std::filesystem::create_directories(folder / "run");
  const RunLock lock(folder / "run");
  test::expect_error(ErrorCode::kUsage, {},
                     [&] { test::tiny_run(artifact, folder / "run", epochs(1)); });
}

}  // namespace
}  // namespace halfnote
