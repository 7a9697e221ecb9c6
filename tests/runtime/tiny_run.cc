#include "tests/runtime/tiny_run.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compiler/ir/text.h"
#include "tests/runtime/train/support.h"

namespace halfnote::test {
namespace {

constexpr std::string_view kModel = R"(<ir_version: 10, opset_import: ["" : 23]>
tiny (float[BATCH,6] x) => (float[BATCH,3] logits) <
   float[6,8] w1 = {W1},
   float[8] b1 = {0, 0.1, 0, -0.1, 0, 0.2, 0, 0},
   float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1},
   float[8] shift = {0, 0, 0, 0, 0, 0, 0, 0},
   float[8] mean = {0, 0, 0, 0, 0, 0, 0, 0},
   float[8] var = {1, 1, 1, 1, 1, 1, 1, 1},
   float[8,3] w2 = {W2},
   float[3] b2 = {0, 0, 0},
   float ratio = {0.25},
   bool training = {1}
> {
   h = Gemm (x, w1, b1)
   n, mean_next, var_next = BatchNormalization <training_mode: int = 1> (h, scale, shift, mean, var)
   r = Relu (n)
   d = Dropout (r, ratio, training)
   logits = Gemm (d, w2, b2)
}
)";

std::string numbers(int count, uint64_t seed) {
  Random random(seed);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const double value = static_cast<double>(random.below(2001)) / 1000.0 - 1.0;
    text += (i == 0 ? "" : ", ") + std::to_string(value);
  }
  return text;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at; (at = text.find(from)) != std::string::npos;) text.replace(at, from.size(), to);
}

std::vector<std::string> read_losses(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<std::string> losses;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("event")) continue;
    losses.push_back(json["step"].dump() + " " + json["loss"].dump() + " " +
                     json.value("accuracy", nlohmann::json()).dump() + " " +
                     json["skipped"].dump() + " " + json["epoch"].dump());
  }
  return losses;
}

}  // namespace

Model tiny_artifact(const TinyOptions& options) {
  std::string text(kModel);
  replace(text, "BATCH", options.batch == BatchDim::kSymbolic ? "N" : "4");
  replace(text, "W1", numbers(48, 1));
  replace(text, "W2", numbers(24, 2));
  CompileOptions compile;
  compile.policy.dtype = options.precision;
  compile.policy.scaler.init = options.first_scale;
  compile.policy.scaler.min = options.least_scale;
  compile.policy.scaler.on_floor = options.on_floor;
  compile.train.loss = options.loss;
  compile.train.label_smoothing = options.label_smoothing;
  compile.train.optimizer.lr = options.lr;
  compile.train.optimizer.weight_decay = 0.01f;
  compile.train.optimizer.clip_norm = options.clip_norm;
  compile.train.accumulation = options.accumulation;
  return compile_model(parse_model(text, "tiny"), compile).model;
}

Dataset tiny_data(int64_t samples) {
  Random random(7);
  Tensor x(DType::kF32, {samples, 6});
  Tensor labels(DType::kI64, {samples});
  const auto features = x.mutable_data<float>();
  const auto classes = labels.mutable_data<int64_t>();
  for (int64_t i = 0; i < samples; ++i) {
    const auto label = static_cast<int64_t>(random.below(3));
    classes[static_cast<size_t>(i)] = label;
    for (int64_t j = 0; j < 6; ++j) {
      const float noise = static_cast<float>(random.below(1000)) / 1000.0f - 0.5f;
      features[static_cast<size_t>(i * 6 + j)] = noise + (j % 3 == label ? 1.0f : 0.0f);
    }
  }
  return Dataset("tiny", {{"x", x}, {"labels", labels}});
}

std::vector<ModelInput> inputs_of(const Session& session) {
  std::vector<ModelInput> inputs;
  for (const auto& [name, type] : session.inputs())
    inputs.push_back({name, type.dtype, *type.shape});
  return inputs;
}

Progress silent_progress() {
  static std::ostringstream nowhere;
  return Progress(ProgressMode::kNone, 0, Terminal{}, nowhere, [] { return 0.0; });
}

TinyRun tiny_run(const Model& artifact, const std::filesystem::path& folder, TrainerOptions options,
                 int64_t stop_after) {
  Session session(artifact, {1, {}, {}});
  const InputMap map(tiny_data(22), inputs_of(session));
  options.run_folder = folder;
  options.artifact = artifact_hash(artifact);
  options.batch = 4;
  // The trainer asks once before each step and before each evaluation.
  const Trainer* running = nullptr;
  options.stop = [&running, stop_after] {
    return stop_after >= 0 && running != nullptr && running->position().step >= stop_after;
  };
  Trainer trainer(session, map, map, options);
  running = &trainer;
  trainer.plan();
  trainer.open();
  Progress progress = silent_progress();
  TinyRun run;
  run.result = trainer.run(progress);
  for (const StateEntry& entry : session.state().entries()) {
    run.states.push_back({entry.name, session.state().get(entry)});
  }
  run.losses = read_losses(folder / "metrics.jsonl");
  return run;
}

void expect_same_states(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_TRUE(identical(a[i].tensor, b[i].tensor)) << a[i].name;
  }
}

}  // namespace halfnote::test
