// training_info: written, read, checked, and read from files that others wrote.
#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "tests/onnx/support.h"

namespace halfnote {
namespace {

using wire::Message;

/// A result with a declared type.
ValueId add_node(Graph& graph, NodeSpec spec, const std::string& name, ValueType type) {
  spec.name = name;
  const ValueId result = graph.output(graph.create(std::move(spec), {name}, graph.end()));
  graph.value(result).type = std::move(type);
  return result;
}

/// y = x·w, with a step that moves w towards a target and counts; names clash on purpose.
Model make_training_model() {
  Model model;
  model.opsets[""] = kOpsetVersion;
  const Tensor w0 = Tensor::of<float>({2, 1}, {1, 2});
  Graph& graph = model.graph;
  graph.name = "net";
  const ValueId x = graph.add_input(graph.main(), "x", floats({Dim::named("N"), 2}));
  const ValueId w = graph.add_initializer("w", w0);
  graph.value(w).trainable = true;
  graph.add_initializer("const", Tensor::scalar(1.0f));
  graph.add_output(graph.main(),
                   add_node(graph, {"MatMul", {x, w}}, "y", floats({Dim::named("N"), 1})));

  TrainingStep step;
  step.name = "step";
  Graph& g = step.graph;
  g.name = "train";
  const ValueId target = g.add_input(g.main(), "target", floats({Dim::named("N"), 1}));
  const ValueId sx = g.add_input(g.main(), "x", floats({Dim::named("N"), 2}));
  const ValueId sw = g.add_initializer("w", w0);
  g.value(sw).trainable = true;
  const ValueId rate = g.add_initializer("const", Tensor::scalar(0.5f));  // another `const`
  const ValueId count = g.add_initializer("count", Tensor::scalar<int64_t>(0));
  const ValueId one = g.add_initializer("one", Tensor::scalar<int64_t>(1));
  const ValueId y = add_node(g, {"MatMul", {sx, sw}}, "y", floats({Dim::named("N"), 1}));
  const ValueId diff = add_node(g, {"Sub", {y, target}}, "diff", floats({Dim::named("N"), 1}));
  const ValueId loss =
      add_node(g, {"ReduceSumSquare", {diff}, {{"keepdims", int64_t{0}}}}, "loss", floats({}));
  const ValueId xt = add_node(g, {"Transpose", {sx}}, "xt", floats({2, Dim::named("N")}));
  const ValueId grad = add_node(g, {"MatMul", {xt, diff}}, "grad", floats({2, 1}));
  g.value(grad).scale_power = 1;
  const ValueId step_size = add_node(g, {"Mul", {grad, rate}}, "delta", floats({2, 1}));
  const ValueId new_w = add_node(g, {"Sub", {sw, step_size}}, "w_new", floats({2, 1}));
  const ValueId new_count = add_node(g, {"Add", {count, one}}, "count_new",
                                     ValueType::tensor(DType::kI64, SymbolicShape{}));
  g.node(g.value(new_w).producer).role = Role::kOptimizer;
  g.add_output(g.main(), loss);
  g.add_state(sw, new_w, StateKind::kWeight);
  g.add_state(count, new_count, StateKind::kCounter);

  Graph& init = step.initialization;
  init.name = "first";
  init.add_output(
      init.main(),
      init.output(init.create({"Constant", {}, {{"value", Tensor::scalar<int64_t>(0)}}, "", "zero"},
                              {"zero"}, init.end())));
  step.initialization_binding = {{"count", "zero"}};
  model.training.push_back(std::move(step));
  return model;
}

TEST(Training, StepsSurviveTheRoundTrip) {
  const Model model = make_training_model();
  const Model read = round_trip(model);
  ASSERT_EQ(read.training.size(), 1u);
  const TrainingStep& step = read.training[0];
  const Graph& graph = step.graph;
  EXPECT_EQ(step.name, "step");
  EXPECT_EQ(names_of(graph, graph.inputs()), (wire::Names{"target", "x"}));
  EXPECT_EQ(names_of(graph, graph.outputs()), (wire::Names{"loss"}));
  EXPECT_EQ(graph.node_count(), model.training[0].graph.node_count());
  ASSERT_EQ(graph.states().size(), 2u);
  EXPECT_EQ(graph.value(graph.states()[0].current).name, "w");
  EXPECT_EQ(graph.value(graph.states()[0].next).name, "w_new");
  EXPECT_EQ(graph.states()[1].kind, StateKind::kCounter);
  EXPECT_TRUE(graph.value(graph.find("w")).trainable);
  EXPECT_FALSE(graph.value(graph.find("const")).trainable);
  EXPECT_EQ(graph.value(graph.find("grad")).scale_power, 1);
  EXPECT_EQ(graph.value(graph.find("const")).tensor.at_as_double(0), 0.5);
  EXPECT_EQ(read.graph.value(read.graph.find("const")).tensor.at_as_double(0), 1.0);
  EXPECT_EQ(graph.node(graph.value(graph.find("w_new")).producer).role, Role::kOptimizer);
  EXPECT_EQ(step.initialization_binding, model.training[0].initialization_binding);
  EXPECT_EQ(names_of(step.initialization, step.initialization.outputs()), (wire::Names{"zero"}));
}

TEST(Training, NothingIsLost) {
  Model model = make_training_model();
  model.producer_name = "halfnote";
  EXPECT_EQ(print(round_trip(model)), print(model));
}

TEST(Training, TheCheckerAcceptsGraphAndAlgorithmJoined) {
  const Model model = make_training_model();
  EXPECT_NO_THROW(check_model(model));
  EXPECT_NO_THROW(check_model(round_trip(model)));
}

TEST(Training, TheCheckerLooksIntoTheAlgorithm) {
  Model model = make_training_model();
  Graph& graph = model.training[0].graph;
  graph.node(graph.value(graph.find("grad")).producer).op = "Transpose";
  EXPECT_THAT(error_of([&] { check_model(model); }).what(),
              testing::HasSubstr("training step \"step\""));
}

TEST(Training, SharedInitializersAreWrittenOnce) {
  Model model = make_training_model();
  const Tensor big = Tensor::full(DType::kF32, {1000}, 1);
  model.graph.add_initializer("big", big);
  const size_t before = export_model_bytes(model).size();
  Graph& graph = model.training[0].graph;
  const ValueId state = graph.add_initializer("big", big.deep_copy());  // equal bytes elsewhere
  graph.add_state(state, state, StateKind::kWeight);
  EXPECT_LT(export_model_bytes(model).size(), before + 1000);
  const Model read = round_trip(model);
  const Tensor& theirs = read.graph.value(read.graph.find("big")).tensor;
  const Graph& step = read.training[0].graph;
  EXPECT_EQ(step.value(step.find("big")).tensor.bytes(), theirs.bytes());
}

TEST(Training, AnInputOfAnotherTypeIsNotShared) {
  Model model = make_training_model();
  Graph& graph = model.training[0].graph;
  graph.value(graph.find("x")).type = floats({4, 2});
  const Model read = round_trip(model);
  const Graph& step = read.training[0].graph;
  EXPECT_EQ(names_of(step, step.inputs()), (wire::Names{"target", "x"}));
  EXPECT_EQ(to_string(step.value(step.find("x")).type), "float[4,2]");
  EXPECT_EQ(to_string(read.graph.value(read.graph.find("x")).type), "float[N,2]");
}

TEST(Training, SeveralStepsMayShareStates) {
  Model model = make_training_model();
  Model other = make_training_model();
  other.training[0].name = "apply";
  model.training.push_back(std::move(other.training[0]));
  const Model read = round_trip(model);
  ASSERT_EQ(read.training.size(), 2u);
  EXPECT_EQ(read.training[1].name, "apply");
  EXPECT_NO_THROW(check_model(read));
}

/// What somebody else's file looks like: the algorithm reads a value that the inference graph
/// computes.
Message foreign_model(const Message& algorithm, const std::vector<wire::Entries>& bindings) {
  const Message graph =
      Message()
          .text(wire::kGraphName, "g")
          .message(wire::kNode, wire::node("Mul", {"x", "w"}, {"h"}, "mul"))
          .message(wire::kNode, wire::node("Relu", {"h"}, {"y"}, "relu"))
          .message(wire::kInitializer,
                   wire::raw_tensor("w", DType::kF32, {2}, wire::raw_of<float>({1, 2})))
          .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
          .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  Message model = wire::model_header().message(7, graph);
  for (const wire::Entries& entries : bindings) {
    Message info = Message().message(2, algorithm);
    for (const auto& [key, value] : entries) info.message(4, wire::entry(key, value));
    model.message(wire::kTrainingInfo, info);
  }
  return model;
}
Message foreign_algorithm() {
  return Message()
      .text(wire::kGraphName, "train")
      .message(wire::kNode, wire::node("Sub", {"h", "t"}, {"g"}, "gradient"))
      .message(wire::kNode, wire::node("Sub", {"w", "g"}, {"w2"}, "update"))
      .message(wire::kInput, wire::value_info("t", DType::kF32, {2}))
      .message(wire::kOutput, wire::value_info("w2", DType::kF32, {2}));
}

TEST(Training, InferenceNodesThatTheAlgorithmReadsAreCopied) {
  const Model model =
      import_text_bytes(foreign_model(foreign_algorithm(), {{{"w", "w2"}}}).bytes());
  const TrainingStep& step = model.training.at(0);
  EXPECT_EQ(step.name, "train");
  EXPECT_EQ(names_of(step.graph, step.graph.inputs()), (wire::Names{"x", "t"}));
  wire::Names ops;
  for (NodeId id : step.graph.nodes()) ops.push_back(step.graph.node(id).name);
  EXPECT_EQ(ops, (wire::Names{"mul", "gradient", "update"})) << "relu is not needed";
  ASSERT_EQ(step.graph.states().size(), 1u);
  EXPECT_EQ(step.graph.states()[0].kind, StateKind::kWeight);
  EXPECT_TRUE(step.graph.value(step.graph.find("w")).trainable);
  EXPECT_EQ(step.graph.value(step.graph.find("w")).tensor.bytes(),
            model.graph.value(model.graph.find("w")).tensor.bytes());
  EXPECT_NO_THROW(check_model(round_trip(model)));
}

struct BadStep {
  const char* name;
  Message model;
  const char* says;
};

class BadSteps : public testing::TestWithParam<BadStep> {};

TEST_P(BadSteps, AreRefusedWithTheReason) {
  const Error error = import_error(GetParam().model.bytes());
  EXPECT_EQ(error.code(), ErrorCode::kModel);
  EXPECT_THAT(error.what(), testing::HasSubstr("training step \"train\""));
  EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadSteps,
    testing::Values(
        BadStep{"UnknownKey", foreign_model(foreign_algorithm(), {{{"v", "w2"}}}),
                "update_binding names \"v\""},
        BadStep{"UnknownValue", foreign_model(foreign_algorithm(), {{{"w", "w3"}}}),
                "update_binding names \"w3\""},
        BadStep{"InputUpdated", foreign_model(foreign_algorithm(), {{{"t", "w2"}}}),
                "expected an initializer, got an input"},
        BadStep{"TwiceUpdated", foreign_model(foreign_algorithm(), {{{"w", "w2"}, {"w", "g"}}}),
                "assigns to \"w\" twice"},
        BadStep{"NameClash",
                foreign_model(Message(foreign_algorithm())
                                  .message(wire::kNode, wire::node("Abs", {"t"}, {"y"})),
                              {{{"w", "w2"}}}),
                "defines \"y\", as graph does"},
        BadStep{"WrongKinds",
                foreign_model(Message(foreign_algorithm())
                                  .message(wire::kGraphMetadata,
                                           wire::entry("halfnote.state_kinds", "weight weight")),
                              {{{"w", "w2"}}}),
                "wrong number of state kinds: expected 1, got 2"},
        BadStep{"BadKind",
                foreign_model(Message(foreign_algorithm())
                                  .message(wire::kGraphMetadata,
                                           wire::entry("halfnote.state_kinds", "heavy")),
                              {{{"w", "w2"}}}),
                "bad state kind \"heavy\""},
        BadStep{
            "BadOutputs",
            foreign_model(Message(foreign_algorithm())
                              .message(wire::kGraphMetadata, wire::entry("halfnote.outputs", "2")),
                          {{{"w", "w2"}}}),
            "bad number of outputs"}),
    [](const auto& row) { return row.param.name; });

TEST(Training, StatesThatBeginWithZerosTakeNoRoom) {
  for (const float first : {0.0f, 1.0f}) {
    Model model = make_training_model();
    Graph& g = model.training.front().graph;
    Tensor moment(DType::kF32, {4096});
    moment.mutable_data<float>()[7] = first;
    const ValueId state = g.add_initializer("moment", moment);
    g.add_state(state, state, StateKind::kMoment);
    const std::vector<std::byte> bytes = export_model_bytes(model);
    EXPECT_EQ(bytes.size() < moment.byte_size(), first == 0) << bytes.size();
    const Model again = import_model_bytes(bytes, "model.onnx", {});
    const Graph& step = again.training.front().graph;
    EXPECT_TRUE(identical(step.value(step.find("moment")).tensor, moment));
    EXPECT_EQ(export_model_bytes(again), bytes);
    EXPECT_NO_THROW(check_model(again));
  }
}

}  // namespace
}  // namespace halfnote
