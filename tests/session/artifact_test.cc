// The artifact: written, read and run it is the model in memory; the checker takes it and the steps
// emitted from it, in every precision.
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "compiler/onnx/export.h"
#include "compiler/onnx/import.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/device/emit_step.h"
#include "passes/passes.h"
#include "passes/train/step.h"
#include "runtime/core/evaluate.h"
#include "support.h"

namespace halfnote::test {
namespace {

constexpr DType kPrecisions[] = {DType::kF32, DType::kBF16, DType::kF16};

Model reread(const Model& model) { return import_model_bytes(export_model_bytes(model), "again"); }

/// The fixture's model, its loss inside the graph.
Model compile_fixture(const std::string& name, DType precision) {
  const std::filesystem::path folder =
      std::filesystem::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/models" / name;
  const auto json = nlohmann::json::parse(read_text(folder / "case.json", size_t{64} << 20));
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {json.at("loss_output").get<std::string>()};
  return compile_file(folder / "model.onnx", options).model;
}

TEST(Artifact, TrainsOnAsTheModelInMemory) {
  for (const DType precision : kPrecisions) {
    for (const int64_t accumulation : {1, 2}) {
      CompileOptions options = options_for("adamw", precision);
      options.train.accumulation = accumulation;
      const Model model = compile_model(cnn_model(), options).model;
      Session memory(model, {.threads = 1, .kernels = {}, .dims = {}});
      Session file(reread(model), {.threads = 1, .kernels = {}, .dims = {}});
      EXPECT_EQ(file.accumulation(), accumulation);
      for (uint64_t i = 0; i < 3; ++i) {
        const std::vector<Tensor> batch = cnn_batch(8, 70 + i);
        EXPECT_EQ(memory.step(batch).loss, file.step(batch).loss) << short_name(precision);
      }
      ASSERT_EQ(memory.state().entries().size(), file.state().entries().size());
      for (const StateEntry& entry : memory.state().entries()) {
        const StateEntry* other = file.state().find(entry.name);
        ASSERT_NE(other, nullptr) << entry.name;
        EXPECT_EQ(entry.kind, other->kind) << entry.name;
        EXPECT_TRUE(identical(memory.state().get(entry), file.state().get(*other))) << entry.name;
      }
    }
  }
}

TEST(Artifact, WrittenAgainItHasTheSameBytes) {
  for (const char* name : {"mlp", "cifar_cnn"}) {
    for (const DType precision : kPrecisions) {
      const std::vector<std::byte> bytes = export_model_bytes(compile_fixture(name, precision));
      const Model again = import_model_bytes(bytes, name);
      EXPECT_EQ(bytes, export_model_bytes(again)) << name << " " << short_name(precision);
    }
  }
}

/// Each binding against the initializer; returns the states that are bound.
std::set<std::string> expect_first_values(const TrainingStep& step) {
  std::set<std::string> bound;
  const std::vector<Tensor> values = evaluate(step.initialization, {});
  const auto outputs = step.initialization.outputs();
  for (const auto& [state, output] : step.initialization_binding) {
    bound.insert(state);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (step.initialization.value(outputs[i]).name != output) continue;
      EXPECT_TRUE(identical(values[i], step.graph.value(step.graph.find(state)).tensor)) << state;
    }
  }
  EXPECT_EQ(bound.size(), outputs.size());
  return bound;
}

TEST(Artifact, InitializationGivesTheFirstValuesOfAllThatTheModelLacks) {
  for (const int64_t accumulation : {1, 2}) {
    CompileOptions options = options_for("adamw", DType::kF16);
    options.train.accumulation = accumulation;
    const Model model = reread(compile_model(cnn_model(), options).model);
    for (const TrainingStep& step : model.training) {
      SCOPED_TRACE(step.name);
      const std::set<std::string> bound = expect_first_values(step);
      for (const State& state : step.graph.states()) {
        const std::string& name = step.graph.value(state.current).name;
        EXPECT_NE(bound.contains(name), model.graph.find(name).valid()) << name;
      }
    }
    const TrainingStep& last = model.training[accumulation == 1 ? 0 : 1];
    EXPECT_EQ(last.name, accumulation == 1 ? kStepName : kApplyName);
    EXPECT_TRUE(expect_first_values(last).contains("loss_scale"));
    EXPECT_TRUE(expect_first_values(last).contains(std::string(kAppliedStep)));
  }
}

TEST(Artifact, TheCheckerTakesItAndItsSteps) {
  for (const DType precision : kPrecisions) {
    for (const char* name : {"mlp", "cifar_cnn"}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(short_name(precision)));
      const Model model = compile_fixture(name, precision);
      EXPECT_NO_THROW(check_model(model));
      const Model again = reread(model);
      EXPECT_NO_THROW(check_model(again));
      for (const TrainingStep& step : again.training) {
        EXPECT_NO_THROW(check_model(emit_step(again, step.name, Emulation::kNone))) << step.name;
        EXPECT_NO_THROW(check_model(emit_step(again, step.name, Emulation::k16Bit))) << step.name;
      }
    }
    CompileOptions options = options_for("nesterov", precision);
    options.train.accumulation = 3;
    const Model split = reread(compile_model(cnn_model(), options).model);
    EXPECT_NO_THROW(check_model(split));
    for (const TrainingStep& step : split.training)
      EXPECT_NO_THROW(check_model(emit_step(split, step.name, Emulation::kNone))) << step.name;
  }
}

TEST(Artifact, InliningLeavesOurOwnFunctions) {
  for (const DType precision : kPrecisions) {
    Model model = reread(compile_model(cnn_model(), options_for("adamw", precision)).model);
    ASSERT_FALSE(model.functions.empty());
    const std::string before = print(model);
    const CompileOptions options;
    std::vector<Remark> remarks;
    PassContext context{options, infer_node, {}, remarks, "inline-functions"};
    EXPECT_FALSE(inline_functions(model, context));
    EXPECT_EQ(before, print(model));
    EXPECT_FALSE(find_nodes(model.training.front().graph, "ai.halfnote.AdamW").empty());
  }
}

// Its gradient leaves out results in the middle; one in the place of another has another shape.
TEST(Artifact, AStepEmittedGivesFrozenOperandsNoOthersGradient) {
  Model model;
  model.graph = parse_graph(R"(main (float[4,1,2] x) => (float[1,1,3] h) <
   float[1,3,2] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6},
   float[1,3,3] r = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
> {
   , h = RNN <hidden_size: int = 3> (x, w, r)
})",
                            "test");
  CompileOptions options = options_for("sgd", DType::kF32);
  options.train.loss = "mse";
  options.train.trainable = {"r"};
  const Model compiled = compile_model(model, options).model;
  const Model step = emit_step(compiled, kStepName, Emulation::kNone);
  EXPECT_NO_THROW(check_model(step));
  Graph graph = step.graph;
  infer_graph(graph);
  for (const ValueId output : graph.outputs()) {
    if (graph.value(output).name == "r.new")
      EXPECT_EQ(to_string(graph.value(output).type), "float[1,3,3]");
  }
}

TEST(Artifact, AStepEmittedHasStandardOpsOnly) {
  for (const DType precision : kPrecisions) {
    const Model model = compile_model(cnn_model(), options_for("adamw", precision)).model;
    const Model step = emit_step(model, kStepName, Emulation::kNone);
    for (NodeId id : step.graph.all_nodes()) EXPECT_EQ(step.graph.node(id).domain, "");
    EXPECT_TRUE(step.functions.empty());
    EXPECT_EQ(step.graph.inputs().size(), 2 + model.training.front().graph.states().size());
  }
}

}  // namespace
}  // namespace halfnote::test
