// What the host does in a steady step, whatever is trained: it brings the inputs and launches the
// captured step, and neither waits, nor allocates, nor launches anything else.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compiler/ir/text.h"
#include "runtime/train/session.h"
#include "runtime/train/trainer.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

SessionOptions on_device() {
  SessionOptions options;
  options.device = test::tested_device();
  options.threads = 1;
  return options;
}

/// A fixture as its case says, with what `settings` change.
Model fixture(const std::string& name, DType precision,
              const std::function<void(CompileOptions&)>& settings = {}) {
  const fs::path folder = fs::path(test::source_folder()) / "tests/fixtures/models" / name;
  std::ifstream file(folder / "case.json");
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {nlohmann::json::parse(file).at("loss_output").get<std::string>()};
  if (settings) settings(options);
  return compile_file(folder / "model.onnx", options).model;
}

/// Gemm, BatchNormalization, Relu, Dropout, Gemm, with a loss attached.
Model with_dropout(DType precision) {
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss = "cross_entropy";
  const std::string_view text = R"(<ir_version: 10, opset_import: ["" : 23]>
    dropped (float[N,6] x) => (float[N,3] logits) <
      float[6,8] w1, float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1},
      float[8] shift = {0, 0, 0, 0, 0, 0, 0, 0}, float[8] mean = {0, 0, 0, 0, 0, 0, 0, 0},
      float[8] var = {1, 1, 1, 1, 1, 1, 1, 1}, float[8,3] w2,
      float ratio = {0.25}, bool training = {1}
    > {
      h = MatMul (x, w1)
      n, mean_next, var_next =
        BatchNormalization <training_mode: int = 1> (h, scale, shift, mean, var)
      r = Relu (n)
      d = Dropout (r, ratio, training)
      logits = MatMul (d, w2)
    })";
  std::string filled(text);
  for (const auto& [name, count] : {std::pair("w1", 48), {"w2", 24}}) {
    std::string numbers;
    for (int i = 0; i < count; ++i)
      numbers += (i == 0 ? "" : ", ") + std::to_string(std::sin(i * 1.7) / 2);
    const std::string declared = std::string("] ") + name + ",";
    const size_t at = filled.find(declared);
    filled.replace(at, declared.size(), std::string("] ") + name + " = {" + numbers + "},");
  }
  return compile_model(parse_model(filled, "dropped"), options).model;
}

/// Inputs for the session, integers all 1; open dims are 4.
std::vector<Tensor> steady_batch(const Session& session, double first = 0.1) {
  std::vector<Tensor> inputs;
  for (const auto& [name, type] : session.inputs()) {
    Shape shape;
    for (const Dim& dim : *type.shape) shape.push_back(dim.known() ? dim.value : 4);
    Tensor tensor(DType::kF64, shape);
    double next = first;
    for (double& x : tensor.mutable_data<double>()) {
      x = is_float(type.dtype) ? std::sin(next) : 1;
      next += first;
    }
    inputs.push_back(tensor.cast_to(type.dtype));
  }
  return inputs;
}

/// The host's work between two looks at the counters.
void expect_work(const DeviceCounters& before, const DeviceCounters& after, uint64_t copies,
                 uint64_t graphs, const std::string& when) {
  EXPECT_EQ(after.graph_launches - before.graph_launches, graphs) << when;
  EXPECT_EQ(after.copies - before.copies, copies) << when << ": the inputs";
  EXPECT_EQ(after.launches, before.launches) << when;
  EXPECT_EQ(after.allocations, before.allocations) << when;
  EXPECT_EQ(after.synchronisations, before.synchronisations) << when;
}

struct SteadyCase {
  std::string title;
  std::function<Model()> model;
  bool overflows = false;  // every third batch holds an infinity
};

std::vector<SteadyCase> steady_cases() {
  const auto mlp = [](DType precision, std::function<void(CompileOptions&)> settings) {
    return [=] { return fixture("mlp", precision, settings); };
  };
  const auto clipped = [](CompileOptions& o) {
    o.train.optimizer.clip_norm = 1;
    o.policy.scaler.init = 1024;
  };
  const auto accumulated = [=](CompileOptions& o) {
    clipped(o);
    o.train.accumulation = 3;
  };
  const auto scheduled = [](CompileOptions& o) {
    o.train.optimizer.kind = "momentum";
    o.train.optimizer.schedule.kind = "cosine";
    o.train.optimizer.schedule.warmup = 2;
    o.train.optimizer.schedule.total = 20;
  };
  return {
      {"f32", mlp(DType::kF32, {})},
      {"bf16", mlp(DType::kBF16, {})},
      {"f16, clipped, with overflows", mlp(DType::kF16, clipped), true},
      {"f32, accumulated, clipped", mlp(DType::kF32, accumulated)},
      {"f16, accumulated, clipped, with overflows", mlp(DType::kF16, accumulated), true},
      {"bf16, a schedule", mlp(DType::kBF16, scheduled)},
      {"f16, dropout and batch norm", [] { return with_dropout(DType::kF16); }, true},
      {"bf16, a CNN", [] { return fixture("cifar_cnn", DType::kBF16); }},
      {"f16, attention", [] { return fixture("gpt2", DType::kF16); }},
      {"f32, recurrent layers", [] { return fixture("gru_classifier", DType::kF32); }},
  };
}

TEST(SteadyStep, IsOneGraphLaunch) {
  for (const SteadyCase& one : steady_cases()) {
    SCOPED_TRACE(one.title);
    Session session(one.model(), on_device());
    const std::vector<Tensor> good = steady_batch(session);
    std::vector<Tensor> bad = good;
    if (one.overflows) bad[0] = Tensor::full(bad[0].dtype(), bad[0].shape(), INFINITY);
    // Each of the graphs, and of the two that take turns, has run once.
    const auto window = static_cast<int>(session.accumulation());
    for (int i = 0; i < 2 * window; ++i) session.step(good);
    int skipped = 0;
    std::vector<uint64_t> copies(static_cast<size_t>(window), 1);
    for (int i = 0; i < 4 * window; ++i) {
      const std::string when = "step " + std::to_string(i);
      const DeviceCounters before = session.device_counters();
      const StepResult result = session.step(i % 3 == 2 ? bad : good);
      const DeviceCounters after = session.device_counters();
      EXPECT_EQ(result.updated, (i + 1) % window == 0) << when;
      // The update of several micro-batches is a graph of its own; where one of the two follows the
      // other, the device puts what that gave aside: as much in each window.
      uint64_t& known = copies[static_cast<size_t>(i % window)];
      if (window > 1 && i < window) known = after.copies - before.copies;
      expect_work(before, after, known, result.updated && window > 1 ? 2 : 1, when);
      skipped += result.updated && !result.finite ? 1 : 0;
    }
    if (window > 1) {
      EXPECT_EQ(copies[1], 1u) << "a micro-batch behind a micro-batch";
    }
    EXPECT_EQ(skipped > 0, one.overflows);
  }
}

TEST(SteadyStep, TwoOnTheirWayAreTwoGraphLaunches) {
  Session session(fixture("mlp", DType::kBF16), on_device());
  const std::vector<Tensor> inputs = steady_batch(session);
  for (int i = 0; i < 2; ++i) session.step(inputs);
  const DeviceCounters before = session.device_counters();
  for (int i = 0; i < 2; ++i) session.start(inputs);
  for (int i = 0; i < 4; ++i) {
    session.finish();
    session.start(inputs);
  }
  while (session.in_flight() > 0) session.finish();
  expect_work(before, session.device_counters(), 6, 6, "six steps");
}

/// Pixels and labels for the MLP.
Dataset images(int64_t samples, const Session& session) {
  std::vector<DataField> fields;
  for (const auto& [name, type] : session.inputs()) {
    Shape shape{samples};
    for (size_t d = 1; d < type.shape->size(); ++d) shape.push_back((*type.shape)[d].value);
    Tensor tensor(DType::kF64, shape);
    double next = 0;
    for (double& x : tensor.mutable_data<double>()) {
      x = is_float(type.dtype) ? std::sin(next) : std::fmod(next, 7);
      next += 1;
    }
    fields.push_back({name, tensor.cast_to(type.dtype)});
  }
  return Dataset("images", fields);
}

/// The counters of a run whenever the trainer is between two of its acts: a step that is started,
/// or one that is finished, with the evaluation behind it.
struct Look {
  int64_t step = 0;
  int in_flight = 0;
  DeviceCounters counters;
};

std::vector<Look> looks_of_run(Session& session, int64_t steps, int64_t evaluate_every) {
  const fs::path folder = fs::path(testing::TempDir()) / "halfnote_steady_run";
  fs::remove_all(folder);
  std::vector<ModelInput> inputs;
  for (const auto& [name, type] : session.inputs())
    inputs.push_back({name, type.dtype, *type.shape});
  const InputMap map(images(8 * steps, session), inputs);
  TrainerOptions options;
  options.run_folder = folder;
  options.batch = 8;
  options.steps = steps;
  options.log_every = 1;
  options.evaluate = {evaluate_every, 0};
  options.save = {0, 0};
  const Trainer* running = nullptr;
  std::vector<Look> looks;
  options.stop = [&] {
    if (running == nullptr) return false;
    const Look now{running->position().step, session.in_flight(), session.device_counters()};
    // An evaluation asks too, again and again; what it did is no part of a step.
    const bool again =
        !looks.empty() && looks.back().step == now.step && looks.back().in_flight == now.in_flight;
    if (again) looks.pop_back();
    looks.push_back(now);
    return false;
  };
  Trainer trainer(session, map, map, options);
  trainer.plan();
  trainer.open();
  running = &trainer;
  std::ostringstream nowhere;
  Progress progress(ProgressMode::kNone, 0, Terminal{}, nowhere, [] { return 0.0; });
  trainer.run(progress);
  fs::remove_all(folder);
  return looks;
}

TEST(SteadyStep, TheTrainerAddsNothing) {
  constexpr int64_t kSteps = 15, kEvaluate = 5;
  for (const DType precision : {DType::kF16, DType::kBF16}) {
    Session session(fixture("mlp", precision), on_device());
    int starts = 0, finishes = 0;
    const std::vector<Look> looks = looks_of_run(session, kSteps, kEvaluate);
    for (size_t i = 1; i < looks.size(); ++i) {
      const Look &before = looks[i - 1], &after = looks[i];
      const std::string when = "after step " + std::to_string(before.step);
      const bool started = after.in_flight > before.in_flight;
      const bool finished = after.step > before.step;
      if (before.step + before.in_flight == 0) continue;      // brings the states too
      if (finished && after.step % kEvaluate == 0) continue;  // with an evaluation behind it
      expect_work(before.counters, after.counters, started ? 1 : 0, started ? 1 : 0, when);
      starts += started ? 1 : 0;
      finishes += finished ? 1 : 0;
    }
    EXPECT_GE(starts, kSteps - 2);  // all but the first, and the last, behind which none asks
    EXPECT_GE(finishes, kSteps - 2 - kSteps / kEvaluate);
  }
}

}  // namespace
}  // namespace halfnote
