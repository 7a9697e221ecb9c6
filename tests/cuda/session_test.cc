// A whole training run on a device, emulated or real: the CPU's numbers, one graph launch a step.
#include "runtime/train/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "kernels/cuda/emulation/emulator.h"
#include "kernels/cuda/libraries/lt_request.h"
#include "passes/train/step.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

const fs::path kMlp = fs::path(test::source_folder()) / "tests/fixtures/models/mlp/model.onnx";

Session session_on(const std::string& device, DType precision, int64_t accumulate = 1,
                   const std::string& optimizer = "adamw") {
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.accumulation = accumulate;
  options.train.loss_outputs = {"13"};
  options.train.optimizer.kind = optimizer;
  SessionOptions session;
  session.device = device;
  session.threads = 1;
  return Session(compile_file(kMlp, options).model, session);
}

/// Pixels and labels for the session's inputs.
std::vector<Tensor> batch(const Session& session, int64_t label = 3) {
  std::vector<Tensor> inputs;
  std::mt19937 engine(7);
  for (const auto& [name, type] : session.inputs()) {
    Shape shape;
    for (const Dim& dim : *type.shape) shape.push_back(dim.known() ? dim.value : 4);
    Tensor tensor(DType::kF64, shape);
    for (double& x : tensor.mutable_data<double>()) {
      x = is_float(type.dtype) ? engine() * 0x1p-32 : static_cast<double>(label);
    }
    inputs.push_back(tensor.cast_to(type.dtype));
  }
  return inputs;
}

TEST(DeviceSession, Tf32IsAskedOfTheLibraryAndRefusedOnACpu) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "requests are recorded there";
  CompileOptions options;
  options.policy.dtype = DType::kF32;
  options.train.loss_outputs = {"13"};
  SessionOptions wanted;
  wanted.device = "cuda-emulated";
  for (const bool tf32 : {false, true}) {
    wanted.tf32 = tf32;
    Session session(compile_file(kMlp, options).model, wanted);
    std::vector<cuda_emulated::MatmulCall> calls;
    cuda_emulated::record_matmuls(&calls);
    session.step(batch(session));
    cuda_emulated::record_matmuls(nullptr);
    ASSERT_FALSE(calls.empty());
    for (const auto& call : calls) EXPECT_EQ(call.request.tf32, tf32);
  }
  wanted.device = "cpu";
  try {
    Session(compile_file(kMlp, options).model, wanted);
    FAIL() << "a CPU has no TF32";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
  }
}

TEST(DeviceSession, TrainsAsOnTheCpu) {
  Session cpu = session_on("cpu", DType::kF32);
  Session device = session_on(test::tested_device(), DType::kF32);
  const std::vector<Tensor> inputs = batch(cpu);
  for (int step = 0; step < 4; ++step) {
    const double wanted = cpu.step(inputs).loss, got = device.step(inputs).loss;
    EXPECT_LE(std::fabs(got - wanted), 1e-5 * wanted) << "step " << step;
  }
  EXPECT_EQ(device.applied_steps(), 4);
  for (const StateEntry& entry : cpu.state().entries()) {
    const Tensor wanted = cpu.state().get(entry);
    const Tensor got = device.state().get(*device.state().find(entry.name));
    for (int64_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(got.at_as_double(i), wanted.at_as_double(i), 2e-5) << entry.name;
    }
  }
}

TEST(DeviceSession, EveryOptimizerTrainsAsOnTheCpu) {
  for (const char* kind :
       {"sgd", "momentum", "nesterov", "adam", "adagrad", "rmsprop", "lion", "lamb", "adafactor"}) {
    // A step of bf16 turns on single roundings: its sums are added in another order.
    for (const auto& [precision, bar] : {std::pair(DType::kF32, 1e-5), {DType::kBF16, 0x1p-7}}) {
      Session cpu = session_on("cpu", precision, 1, kind);
      Session device = session_on(test::tested_device(), precision, 1, kind);
      const std::vector<Tensor> inputs = batch(cpu);
      double first = 0, wanted = 0;
      for (int step = 0; step < 4; ++step) {
        wanted = cpu.step(inputs).loss;
        const double got = device.step(inputs).loss;
        if (step == 0) first = wanted;
        EXPECT_LE(std::fabs(got - wanted), bar * first)
            << kind << " in " << short_name(precision) << ", step " << step;
      }
      EXPECT_LT(wanted, first) << kind << " does not learn";
    }
  }
}

TEST(DeviceSession, BatchStaysOnTheDevice) {
  SessionOptions options;
  options.device = test::tested_device();
  options.keep_inputs = true;
  Session plain = session_on(test::tested_device(), DType::kBF16);
  Session session(plain.model(), options);
  std::vector<Tensor> inputs = batch(session);
  // The first step of either slot brings it.
  for (int step = 0; step < 2; ++step)
    EXPECT_EQ(session.step(inputs).loss, plain.step(inputs).loss);
  const uint64_t copies = session.device_counters().copies;
  for (int step = 0; step < 3; ++step) {
    session.start(inputs);
    EXPECT_EQ(session.finish().loss, plain.step(inputs).loss);
  }
  EXPECT_EQ(session.device_counters().copies, copies);
  std::vector<Tensor> others;
  for (const Tensor& input : inputs) others.push_back(input.deep_copy());
  session.step(others);
  EXPECT_EQ(session.device_counters().copies, copies + 1) << "inputs at other addresses";
}

/// How many steps of a program of a fixture are done by each row of kernels.
std::map<std::string, int> rows_of(const std::string& model, CompileOptions options,
                                   std::string_view program = kStepName) {
  options.train.loss_outputs = {model == "bert" ? "307" : "422"};
  SessionOptions on;
  on.device = test::tested_device();
  const fs::path path = fs::path(test::source_folder()) / "tests/fixtures/models" / model;
  Session session(compile_file(path / "model.onnx", options).model, on);
  std::vector<Shape> shapes;
  for (const auto& [name, type] : session.inputs()) {
    shapes.emplace_back();
    for (const Dim& dim : *type.shape) shapes.back().push_back(dim.known() ? dim.value : 4);
  }
  session.prepare(shapes);
  std::map<std::string, int> count;
  for (const ProgramStep& step : session.program(program)->steps) {
    if (step.row != nullptr) ++count[std::string(step.row->name)];
  }
  return count;
}

TEST(DeviceSession, AllUpdatesAreOneStep) {
  for (const char* model : {"bert", "gpt2"}) {
    for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const float clip : {0.0f, 1.0f}) {
        CompileOptions options;
        options.policy.dtype = precision;
        options.train.optimizer.clip_norm = clip;
        std::map<std::string, int> rows = rows_of(model, options);
        EXPECT_EQ(rows["own.optimizer"], 1) << model;
        const bool judged = clip > 0 || precision != DType::kF32;
        EXPECT_EQ(rows["own.all_finite"] + rows["own.global_norm"], judged ? 1 : 0) << model;
      }
    }
  }
}

TEST(DeviceSession, UpdatesOfAKindAreAStepEach) {
  CompileOptions options;
  options.policy.dtype = DType::kBF16;
  for (const char* kind : {"sgd", "momentum", "adam", "adagrad", "rmsprop", "lion", "lamb"}) {
    options.train.optimizer.kind = kind;
    EXPECT_EQ(rows_of("bert", options)["own.optimizer"], 1) << kind;
  }
  options.train.optimizer.kind = "adafactor";
  EXPECT_EQ(rows_of("bert", options)["own.optimizer"], 2) << "matrices and vectors";
  options.train.optimizer = {};
  options.train.optimizer.weight_decay = 0.125f;
  options.train.optimizer.no_decay_on_1d = true;
  EXPECT_EQ(rows_of("bert", options)["own.optimizer"], 2) << "with decay and without";
  options.train.accumulation = 2;
  EXPECT_EQ(rows_of("bert", options, kApplyName)["own.optimizer"], 2) << "from the sums";
}

/// Batches that differ, so that one in the place of another shows.
std::vector<std::vector<Tensor>> batches(const Session& session, int count) {
  std::vector<std::vector<Tensor>> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(batch(session, i % 7));
  return all;
}

TEST(DeviceSession, TheNextStepBeginsBeforeTheLastHasEnded) {
  for (const uint64_t seed : {1, 2, 3}) {
    emulation::set_emulation_seed(seed);
    for (const auto& [precision, accumulate] :
         {std::pair(DType::kF32, 1), {DType::kF16, 1}, {DType::kF32, 2}}) {
      Session ahead = session_on(test::tested_device(), precision, accumulate);
      Session by_turns = session_on(test::tested_device(), precision, accumulate);
      ASSERT_EQ(ahead.most_in_flight(), 2);
      const auto all = batches(ahead, 7);
      std::vector<StepResult> got;
      for (std::vector<Tensor> inputs : all) {  // a copy that ends with its round
        if (ahead.in_flight() == 2) got.push_back(ahead.finish());
        ahead.start(inputs);
      }
      while (ahead.in_flight() > 0) got.push_back(ahead.finish());
      for (size_t i = 0; i < all.size(); ++i) {
        const StepResult wanted = by_turns.step(all[i]);
        EXPECT_EQ(got[i].loss, wanted.loss) << "step " << i;
        EXPECT_EQ(got[i].loss_scale, wanted.loss_scale) << "step " << i;
        EXPECT_EQ(got[i].updated, wanted.updated) << "step " << i;
        EXPECT_EQ(got[i].pending, wanted.pending) << "step " << i;
        EXPECT_EQ(got[i].applied_steps, wanted.applied_steps) << "step " << i;
        EXPECT_EQ(*wanted.applied_steps, by_turns.applied_steps()) << "step " << i;
      }
      for (const StateEntry& entry : by_turns.state().entries()) {
        const Tensor wanted = by_turns.state().get(entry);
        EXPECT_TRUE(identical(ahead.state().get(*ahead.state().find(entry.name)), wanted))
            << entry.name;
      }
    }
  }
  emulation::set_emulation_seed(1);
}

TEST(DeviceSession, CountsCorrectLabelsByItself) {
  Session device = session_on(test::tested_device(), DType::kF32);
  const auto kind = find_classification(device.model().training.front().graph);
  ASSERT_TRUE(kind);
  int64_t right = 0;
  for (const std::vector<Tensor>& inputs : batches(device, 10)) {
    const StepResult step = device.step(inputs);
    ASSERT_TRUE(step.correct);
    const auto wanted =
        count_scores(*kind, device.output(kind->scores), inputs[1], 8, ScoreLoss::kSkip);
    EXPECT_EQ(step.correct->top1, wanted->top1);
    EXPECT_EQ(step.correct->labels, 8);
    right += step.correct->top1;
  }
  // NaN is never right.
  std::vector<Tensor> inputs = batch(device);
  std::ranges::fill(inputs[0].mutable_data<float>(), NAN);
  EXPECT_EQ(device.step(inputs).correct->top1, 0);
  EXPECT_GT(right, 0);
  EXPECT_LT(right, 80);
}

TEST(DeviceSession, MoreThanTwoStepsAreRefused) {
  Session session = session_on(test::tested_device(), DType::kF32);
  const std::vector<Tensor> inputs = batch(session);
  EXPECT_THROW(session.finish(), Error);
  session.start(inputs);
  EXPECT_THROW(session.step(inputs), Error);
  session.start(inputs);
  EXPECT_THROW(session.start(inputs), Error);
  EXPECT_EQ(session.finish().applied_steps, 1);
  EXPECT_EQ(session.finish().applied_steps, 2);
}

TEST(DeviceSession, ChainsOfElementwiseOpsAreOneKernelEach) {
  const std::string_view text =
      "<ir_version: 10, opset_import: [\"\" : 23]> chain (float[3,4] x) => (float[3,4] y)"
      " <float[4] w = {1, 2, 3, 4}> { h = Mul (x, w) g = Tanh (h) y = Mul (g, x) }";
  std::vector<double> losses;
  for (const std::string& device : {std::string("cpu"), test::tested_device()}) {
    CompileOptions options;
    options.policy.dtype = DType::kF32;
    options.train.loss = "mse";
    SessionOptions on;
    on.device = device;
    Session session(compile_model(parse_model(text, "chain"), options).model, on);
    const std::vector<Tensor> inputs = batch(session);
    session.step(inputs);
    losses.push_back(session.step(inputs).loss);
    if (device == "cpu") continue;
    int chains = 0;
    for (const ProgramStep& step : session.program("step")->steps)
      chains += step.row != nullptr && step.row->name == "generated.chain" ? 1 : 0;
    EXPECT_GT(chains, 0);
  }
  EXPECT_LE(std::fabs(losses[1] - losses[0]), 1e-5 * losses[0]);
}

TEST(DeviceSession, OrderOfThreadsChangesNothing) {
  std::vector<double> losses;
  for (const uint64_t seed : {1, 2, 3}) {
    emulation::set_emulation_seed(seed);
    Session session = session_on(test::tested_device(), DType::kF16);
    const std::vector<Tensor> inputs = batch(session);
    double loss = 0;
    for (int step = 0; step < 3; ++step) loss = session.step(inputs).loss;
    losses.push_back(loss);
  }
  emulation::set_emulation_seed(1);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(DeviceSession, StatesGoBothWays) {
  Session session = session_on(test::tested_device(), DType::kF32);
  const std::vector<Tensor> inputs = batch(session);
  const double first = session.step(inputs).loss;
  const StateEntry* weight = nullptr;
  for (const StateEntry& entry : session.state().entries()) {
    if (entry.kind == StateKind::kWeight && entry.shape.size() == 2) weight = &entry;
  }
  ASSERT_NE(weight, nullptr);
  // Zero weights of the last layer: all classes are equal, but for the bias.
  session.state().set(*weight, Tensor(weight->dtype, weight->shape));
  const double second = session.step(inputs).loss;
  EXPECT_NE(first, second);
  EXPECT_NE(session.state().get(*weight).at_as_double(0), 0) << "it was updated on the device";
}

/// Every 16-bit copy is its weight, rounded.
void expect_copies_follow(const Session& session, const std::string& when) {
  ASSERT_FALSE(session.state().copies().empty());
  for (const StateEntry& copy : session.state().copies()) {
    const Tensor weight = session.state().get(*session.state().find(copy.copy_of));
    EXPECT_TRUE(identical(session.state().get(copy), weight.cast_to(copy.dtype)))
        << copy.name << " " << when;
  }
}

TEST(DeviceSession, UpdatesWriteTheCopiesOfWeights) {
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    for (const int64_t accumulate : {1, 2}) {
      const std::string_view last = accumulate == 1 ? kStepName : kApplyName;
      Session session = session_on(test::tested_device(), precision, accumulate);
      const std::vector<Tensor> good = batch(session);
      std::vector<Tensor> bad = good;
      bad[0] = Tensor::full(bad[0].dtype(), bad[0].shape(), INFINITY);
      for (int step = 0; step < 6; ++step) {
        session.step(step == 3 ? bad : good);
        expect_copies_follow(session, "after step " + std::to_string(step));
      }
      EXPECT_EQ(session.applied_steps(), 6 / accumulate - 1);
      const StateEntry& copy = session.state().copies().front();
      const StateEntry& weight = *session.state().find(copy.copy_of);
      session.state().set(weight, Tensor::full(weight.dtype, weight.shape, 0.1));
      session.evaluate(good);
      expect_copies_follow(session, "after the weight was set");
      for (const ProgramStep& step : session.program(last)->steps) {
        const bool casts = step.op == "Cast" && step.inputs[0].space == BufferRef::Space::kState;
        EXPECT_FALSE(casts) << step.node;
      }
    }
  }
}

TEST(DeviceSession, Accumulates) {
  Session cpu = session_on("cpu", DType::kF32, 2);
  Session device = session_on(test::tested_device(), DType::kF32, 2);
  const std::vector<Tensor> inputs = batch(cpu);
  for (int step = 0; step < 4; ++step) {
    const StepResult wanted = cpu.step(inputs), got = device.step(inputs);
    EXPECT_EQ(got.updated, wanted.updated);
    EXPECT_LE(std::fabs(got.loss - wanted.loss), 1e-5 * wanted.loss) << "step " << step;
  }
}

/// Of a model that computes its labels, one less than what it is fed: only the device sees them.
Session session_of_computed_labels() {
  CompileOptions options;
  options.train.loss_outputs = {"l"};
  SessionOptions on;
  on.device = test::tested_device();
  const std::string_view text =
      "<ir_version: 10, opset_import: [\"\" : 17]> labelled (float[4,2] x, int64[4] fed) =>"
      " (float l) <float[2,5] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1}, int64 one = {1}>"
      " { s = MatMul (x, w) t = Sub (fed, one) l = SoftmaxCrossEntropyLoss (s, t) }";
  return Session(compile_model(parse_model(text, "labelled"), options).model, on);
}

/// Calls `body`, which must throw what a label says that is no class.
template <class Body>
void expect_bad_label(const std::string& label, const Body& body) {
  try {
    body();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_EQ(error.problem().find("label " + label + " at position "), 0u) << error.what();
    EXPECT_NE(error.problem().find(" is no class"), std::string::npos) << error.what();
    EXPECT_NE(error.place().op.find("Loss"), std::string::npos) << error.what();
    EXPECT_FALSE(error.place().node.empty()) << error.what();
  }
}

TEST(DeviceSession, BadLabelsAreRefusedBeforeTheStep) {
  Session session = session_on(test::tested_device(), DType::kF32);
  Session good = session_on(test::tested_device(), DType::kF32);
  Session cpu = session_on("cpu", DType::kF32);
  session.start(batch(session));
  std::string told;
  try {
    cpu.step(batch(cpu, 1000));
  } catch (const Error& error) {
    told = error.what();
  }
  try {
    session.start(batch(session, 1000));
    FAIL() << "no error";
  } catch (const Error& error) {
    const auto from_label = [](const std::string& what) {
      return what.substr(what.find("label "));
    };
    EXPECT_EQ(from_label(error.what()), from_label(told));
  }
  EXPECT_TRUE(session.left_states());
  EXPECT_EQ(session.finish().loss, good.step(batch(good)).loss);
  EXPECT_EQ(session.step(batch(session)).loss, good.step(batch(good)).loss);
  EXPECT_EQ(session.applied_steps(), 2);
}

/// 257 is 1 in 8 bits: what the graph makes of an index counts.
TEST(DeviceSession, IndicesThatACastChangesAreNotJudgedBeforeIt) {
  CompileOptions options;
  options.train.loss_outputs = {"l"};
  const std::string_view text =
      "<ir_version: 10, opset_import: [\"\" : 17]> short (int64[4] ids) => (float l)"
      " <float[3,2] w = {1, 2, 3, 4, 5, 6}>"
      " { b = Cast <to = 3> (ids) i = Cast <to = 7> (b) r = Gather (w, i)"
      " l = ReduceMean <keepdims = 0> (r) }";
  double losses[2] = {};
  for (const int k : {0, 1}) {
    SessionOptions on;
    on.device = k == 0 ? "cpu" : test::tested_device();
    Session session(compile_model(parse_model(text, "short"), options).model, on);
    losses[k] = session.step(batch(session, 257)).loss;
  }
  EXPECT_FLOAT_EQ(static_cast<float>(losses[1]), static_cast<float>(losses[0]));
}

/// Two Gathers, of which the second is in a branch of an If, and counts where that is asked for.
TEST(DeviceSession, AFaultNamesTheNodeThatFoundIt) {
  CompileOptions options;
  options.train.loss_outputs = {"l"};
  const std::string_view text =
      "<ir_version: 10, opset_import: [\"\" : 17]> two (int64[4] ids, bool b) => (float l)"
      " <float[3,2] w = {1, 2, 3, 4, 5, 6}, int64 two = {2}>"
      " { i = Mul (ids, ids) j = Add (i, two)"
      " [outer] r = Gather (w, i)"
      " [picked] q = If (b) <then_branch = g () => (float[4,2] t) { [inner] t = Gather (w, j) },"
      " else_branch = h () => (float[4,2] e) { e = Identity (r) }>"
      " s = Add (q, r) l = ReduceMean <keepdims = 0> (s) }";
  SessionOptions on;
  on.device = test::tested_device();
  Session session(compile_model(parse_model(text, "two"), options).model, on);
  const auto inputs = [&](int64_t id, bool then) {
    return std::vector<Tensor>{Tensor::full(DType::kI64, {4}, static_cast<double>(id)),
                               Tensor::full(DType::kBool, {}, then ? 1 : 0)};
  };
  const auto place_of = [&](int64_t id, bool then) {
    try {
      session.step(inputs(id, then));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData);
      EXPECT_EQ(error.place().op, "Gather");
      return error.place().node;
    }
    return std::string("none");
  };
  EXPECT_EQ(place_of(0, true), "none");
  EXPECT_EQ(place_of(1, true), "inner");
  EXPECT_EQ(place_of(1, false), "none");
  EXPECT_EQ(place_of(9, false), "outer");
  EXPECT_EQ(place_of(0, true), "none");
}

TEST(DeviceSession, BadDataIsThatOfItsOwnStep) {
  Session session = session_of_computed_labels(), good = session_of_computed_labels();
  session.start(batch(session));
  session.start(batch(session, 1000));
  EXPECT_EQ(session.finish().loss, good.step(batch(good)).loss);
  expect_bad_label("999", [&] { session.finish(); });
  session.start(batch(session));  // what was wrong is told once
  EXPECT_NO_THROW(session.finish());
}

TEST(DeviceSession, StepsGoOnBehindBadData) {
  Session session = session_of_computed_labels();
  session.start(batch(session, 1000));
  session.start(batch(session));  // on its way before anybody knows
  expect_bad_label("999", [&] { session.finish(); });
  EXPECT_NO_THROW(session.finish());
  for (int step = 0; step < 6; ++step) EXPECT_NO_THROW(session.step(batch(session))) << step;
  expect_bad_label("999", [&] { session.step(batch(session, 1000)); });
  for (int step = 0; step < 6; ++step) EXPECT_NO_THROW(session.step(batch(session))) << step;
}

TEST(DeviceSession, OutOfMemoryIsToldBeforeTheFirstStep) {
  CompileOptions options;
  options.train.loss = "mse";
  SessionOptions device;
  device.device = test::tested_device();
  const std::string_view text =
      "<ir_version: 10, opset_import: [\"\" : 23]> open_batch (float[N,4] x) => (float[N,4] y)"
      " <float[4] w = {1, 2, 3, 4}> { y = Mul (x, w) }";
  Session session(compile_model(parse_model(text, "open_batch"), options).model, device);
  const std::vector<Tensor> inputs = batch(session);
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) {
    shapes.push_back(input.shape());
    shapes.back()[0] = int64_t{1} << 35;  // terabytes
  }
  try {
    session.prepare(shapes);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory) << error.what();
    EXPECT_NE(std::string(error.what()).find("bytes free"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(session.step(inputs)) << "smaller batches still fit";
}

TEST(DeviceSession, UnknownDeviceIsNeverReplaced) {
  EXPECT_THROW(session_on("gpu", DType::kF32), Error);
}

}  // namespace
}  // namespace halfnote
