// The artifact: written, read and run it is the model in memory; the checker takes it and the steps
// emitted from it, in every precision.
#include <cmath>
#include <filesystem>
#include <map>
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
    if (graph.value(output).name == "r.new") {
      EXPECT_EQ(to_string(graph.value(output).type), "float[1,3,3]");
    }
  }
}

// The body of AveragePoolGrad leaves its dims open; that of ResizeGrad is a product only for dims
// that are known to change.
TEST(Artifact, AStepEmittedKnowsTheSizesBehindABody) {
  Model model;
  model.opsets[""] = kOpsetVersion;
  model.graph = parse_graph(R"(main (float[1,2,6] x) => (float loss) <
   float[1,2,6] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6},
   int64[3] s = {1, 2, 3}
> {
   y = Mul (x, w)
   r = Resize <mode: string = "linear"> (y, , , s)
   p = AveragePool <kernel_shape: ints = [2], dilations: ints = [2], strides: ints = [2]> (r)
   loss = ReduceMean <keepdims: int = 0> (p)
})",
                            "test");
  CompileOptions options = options_for("sgd", DType::kF32);
  options.train.loss.clear();
  options.train.loss_outputs = {"loss"};
  const Model compiled = compile_model(model, options).model;
  EXPECT_NO_THROW(check_model(emit_step(compiled, kStepName, Emulation::kNone)));
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

/// A step as other runtimes run it: states go in and come out by name.
class EmittedStep {
 public:
  EmittedStep(const Model& model, std::string_view step)
      : graph_(emit_step(model, step, Emulation::kNone).graph) {}

  const Graph& graph() const { return graph_; }

  std::vector<Tensor> run(const std::vector<Tensor>& batch, std::map<std::string, Tensor>& states) {
    std::vector<Tensor> operands;
    for (const ValueId input : graph_.inputs()) {
      const auto state = states.find(graph_.value(input).name);
      operands.push_back(state == states.end() ? batch.at(operands.size()) : state->second);
    }
    std::vector<Tensor> results = evaluate(graph_, operands);
    const auto outputs = graph_.outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string& name = graph_.value(outputs[i]).name;
      if (!name.ends_with(".new")) continue;
      states.at(name.substr(0, name.size() - 4)) = results[i];
    }
    return results;
  }

 private:
  Graph graph_;
};

std::map<std::string, Tensor> states_by_name(const Session& session) {
  std::map<std::string, Tensor> states;
  for (const StateEntry& entry : session.state().entries())
    states[entry.name] = session.state().get(entry);
  return states;
}

CompileOptions in_pairs(DType precision) {
  CompileOptions options = options_for("momentum", precision);
  options.train.accumulation = 2;
  return options;
}

// The weights are states of `apply` alone: as constants of `accumulate` they would stay as they
// are.
TEST(Artifact, AStepEmittedHasNoStateAsAConstant) {
  for (const DType precision : kPrecisions) {
    const Model model = compile_model(cnn_model(), in_pairs(precision)).model;
    const Session session(model, {.threads = 1, .kernels = {}, .dims = {}});
    const std::map<std::string, Tensor> states = states_by_name(session);
    for (const std::string_view name : {kAccumulateName, kApplyName}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(short_name(precision)));
      const EmittedStep step(model, name);
      for (const ValueId value : step.graph().initializers())
        EXPECT_FALSE(states.contains(step.graph().value(value).name))
            << step.graph().value(value).name;
    }
    const EmittedStep step(model, kAccumulateName);
    const auto is_input = [&](std::string_view name) {
      const ValueId value = step.graph().find(name);
      return value.valid() && step.graph().value(value).kind == ValueKind::kInput;
    };
    size_t weights = 0;
    for (const StateEntry& entry : session.state().entries()) {
      if (entry.kind != StateKind::kWeight) continue;
      ++weights;
      EXPECT_TRUE(is_input(entry.name)) << entry.name;
      EXPECT_FALSE(step.graph().find(entry.name + ".new").valid()) << entry.name;
    }
    EXPECT_GT(weights, 0u);
    EXPECT_EQ(is_input(kLossScale), precision == DType::kF16);
  }
}

TEST(Artifact, EmittedMicroBatchesAndUpdatesTrainAsTheSession) {
  const CompileOptions options = in_pairs(DType::kF32);
  const Model model = compile_model(cnn_model(), options).model;
  Session session = reference_session(cnn_model(), options);
  std::map<std::string, Tensor> states = states_by_name(session);
  const std::map<std::string, Tensor> first = states;
  EmittedStep accumulate(model, kAccumulateName), apply(model, kApplyName);
  for (uint64_t i = 0; i < 6; ++i) {
    const std::vector<Tensor> batch = cnn_batch(8, 90 + i);
    const double want = session.step(batch).loss;
    const double got = accumulate.run(batch, states).front().data<float>()[0];
    if (i % 2 == 1) apply.run({}, states);
    EXPECT_NEAR(got, want, 1e-4 * want) << "micro-batch " << i;
  }
  for (const auto& [name, want] : states_by_name(session)) {
    const Tensor& got = states.at(name);
    ASSERT_EQ(got.shape(), want.shape()) << name;
    double off = 0, size = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
      off = std::max(off, std::abs(got.at_as_double(i) - want.at_as_double(i)));
      size = std::max(size, std::abs(want.at_as_double(i)));
    }
    // A sum that cancels is off by roundings of what it adds, which is at most around 1.
    EXPECT_LE(off, 1e-4 * size + 64 * 0x1p-24) << name;
    if (session.state().find(name)->kind == StateKind::kWeight) {
      EXPECT_FALSE(identical(got, first.at(name))) << name;
    }
  }
}

}  // namespace
}  // namespace halfnote::test
