// What runs beside the main line touches nothing that the main line touches meanwhile: looked at in
// the plans of models, whatever the order in which a device happens to do it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compiler/onnx/import.h"
#include "passes/compile.h"
#include "runtime/core/memory/placement.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"
#include "tests/environment.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;
using Space = BufferRef::Space;

/// Bytes of the arena or the state store that a step reads or writes.
struct Touched {
  Space space = Space::kNone;
  size_t from = 0, to = 0;
  bool written = false;
};

/// What the steps of a program touch.
class Touches {
 public:
  explicit Touches(const Program& program)
      : program_(program), placement_(place_best(program.arena_blocks)) {
    EXPECT_EQ(placement_.bytes, program.arena_bytes);
    for (const ProgramStep& step : program.steps) {
      std::vector<Touched>& all = steps_.emplace_back();
      for (size_t i = 0; i < step.inputs.size(); ++i)
        add(all, step, step.inputs[i], step.input_types[i], false);
      for (size_t i = 0; i < step.outputs.size(); ++i)
        add(all, step, step.outputs[i], step.output_types[i], true);
      if (step.kernel != nullptr && step.kernel->workspace_bytes() > 0)
        add(all, step, step.workspace, {}, true);
    }
  }
  bool collide(size_t a, size_t b) const {
    for (const Touched& x : steps_[a]) {
      for (const Touched& y : steps_[b]) {
        if (x.space == y.space && (x.written || y.written) && x.from < y.to && y.from < x.to)
          return true;
      }
    }
    return false;
  }

 private:
  void add(std::vector<Touched>& all, const ProgramStep& step, const BufferRef& ref,
           const StepOperand& type, bool written) {
    if (ref.space == Space::kState) {
      const auto elements = static_cast<size_t>(element_count(type.shape));
      all.push_back({ref.space, ref.offset, ref.offset + elements * size_of(type.dtype), written});
    }
    if (ref.space != Space::kArena) return;
    // The block that is there when the step runs: all of it.
    size_t found = 0;
    for (size_t i = 0; i < program_.arena_blocks.size(); ++i) {
      const ArenaBlock& block = program_.arena_blocks[i];
      if (placement_.offsets[i] != ref.offset || block.first > step.moment ||
          step.moment >= block.last)
        continue;
      ++found;
      all.push_back({ref.space, ref.offset, ref.offset + block.bytes, written});
    }
    EXPECT_EQ(found, 1u) << step.node;
  }

  const Program& program_;
  Placement placement_;
  std::vector<std::vector<Touched>> steps_;
};

/// Looks at all steps beside the main line, and returns how many there are.
int check(const Program& program) {
  const Touches touches(program);
  int beside = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const ProgramStep& step = program.steps[i];
    if (step.joins_before == 0) continue;
    ++beside;
    EXPECT_GT(step.joins_before, i);
    EXPECT_LE(step.joins_before, program.steps.size());
    for (size_t k = i + 1; k < step.joins_before; ++k) {
      const ProgramStep& main = program.steps[k];
      EXPECT_TRUE(main.joins_before > 0 || !touches.collide(i, k))
          << step.node << " beside " << main.node;
    }
  }
  return beside;
}

/// Open dims are `batch`.
Session planned(const Model& model, int64_t batch, SessionOptions::Memory memory = {}) {
  SessionOptions on;
  on.device = "cuda-emulated";
  on.plan_only = true;
  on.keep_types = true;
  on.memory = memory;
  Session session(model, on);
  std::vector<Shape> shapes;
  for (const auto& [input, type] : session.inputs()) {
    shapes.emplace_back();
    for (const Dim& dim : *type.shape) shapes.back().push_back(dim.known() ? dim.value : batch);
  }
  session.prepare(shapes);
  return session;
}

Session planned(const std::string& name, DType precision) {
  const fs::path folder = fs::path(test::source_folder()) / "tests/fixtures/models" / name;
  std::ifstream about(folder / "case.json");
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {nlohmann::json::parse(about).at("loss_output")};
  return planned(compile_file(folder / "model.onnx", options).model, 4);
}

TEST(BranchRaces, NoneInThePlansOfModels) {
  const Variable wish("HALFNOTE_BRANCHES", "always");
  for (const char* model : {"mlp", "cifar_cnn", "bert", "gpt2", "vit", "llama", "dlrm", "gcn",
                            "lstm_lm", "gru_classifier", "unet", "mobilenet_v3"}) {
    for (const DType precision : {DType::kF32, DType::kF16}) {
      SCOPED_TRACE(model + (" " + std::string(short_name(precision))));
      const Session session = planned(model, precision);
      EXPECT_GT(check(*session.program("step")), 0);
    }
  }
}

// The way through a model's layers is the longest: its products stay on the main line, where a loss
// scale has its reciprocal, too.
TEST(BranchRaces, GradientsOfLayersStayOnTheMainLine) {
  const auto products = [](const char* name, const Session& session) {
    int all = 0, beside = 0;
    for (const ProgramStep& step : session.program("step")->steps) {
      all += step.flops > 0 ? 1 : 0;
      beside += step.flops > 0 && step.joins_before > 0 ? 1 : 0;
    }
    EXPECT_GT(beside, 0) << name;
    EXPECT_LT(3 * beside, 2 * all) << name;
    return session.program("step")->commits.size();
  };
  for (const char* model : {"vit", "mlp"}) {
    const size_t commits = products(model, planned(model, DType::kF16));
    const Variable wish("HALFNOTE_BRANCHES", "never");
    EXPECT_EQ(commits, planned(model, DType::kF16).program("step")->commits.size()) << model;
  }
}

// cuDNN's recurrent layers share their handle's memory; and of two bad indices, computed ones too,
// the first is told.
TEST(BranchRaces, SomeStepsStayOnTheMainLine) {
  constexpr const char* kTowers = R"(<ir_version: 10, opset_import: ["" : 22]>
net (float[5,2,8] a, float[5,2,8] b, int64[1] i) => (float[1,2,16] y) <int64[1] five = {5}> {
  w = RandomNormal <shape = [1, 64, 8], seed = 1.0> ()
  r = RandomNormal <shape = [1, 64, 16], seed = 2.0> ()
  v = RandomNormal <shape = [1, 64, 8], seed = 3.0> ()
  u = RandomNormal <shape = [16, 2], seed = 4.0> ()
  k = Add (i, five)
  g = Gather <axis = 0> (u, k)
  y1, h1 = LSTM <hidden_size: int = 16> (a, w, r)
  y2, h2 = LSTM <hidden_size: int = 16> (b, v, r)
  h = Mul (h1, h2)
  m = ReduceSum (g)
  y = Mul (h, m)
})";
  CompileOptions options;
  options.train.loss = "mse";
  const Session session = planned(compile_model(parse_model(kTowers, "t"), options).model, 2);
  int recurrent = 0;
  for (const ProgramStep& step : session.program("step")->steps) {
    if (step.op != "Gather" && !step.op.starts_with("ai.halfnote.LSTM")) continue;
    EXPECT_EQ(step.joins_before, 0u) << step.node;
    recurrent += step.row->name == "dnn.recurrent" ? 1 : 0;
  }
  EXPECT_EQ(recurrent, 4);
}

// What is held for steps beside others is memory: a limit comes first.
TEST(BranchRaces, ALimitOnMemoryIsKept) {
  CompileOptions options;
  options.policy.dtype = DType::kBF16;
  options.train.loss = "cross_entropy";
  const Model model =
      compile_file(fs::path(test::source_folder()) / "samples/cifar_cnn/model.onnxtxt", options)
          .model;
  const Session limited = planned(model, 128, {0, int64_t{40} << 20});
  ASSERT_TRUE(limited.recomputation());
  EXPECT_LT(limited.recomputation()->limit, limited.recomputation()->before);
  EXPECT_LE(limited.recomputation()->after, limited.recomputation()->limit);
  EXPECT_EQ(check(*limited.program("step")), 0);
  EXPECT_GT(check(*planned(model, 128).program("step")), 0);
}

}  // namespace
}  // namespace halfnote
