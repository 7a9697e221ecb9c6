// Subgraphs and functions.
#include "compiler/onnx/check.h"
#include "compiler/onnx/schema.h"
#include "tests/onnx/support.h"

namespace halfnote {
namespace {

using wire::Message;

/// y = If(c) { then: t = Relu(x); else: t = Neg(w) }: both branches capture, and both call their
/// result `t`.
Message if_graph() {
  const auto branch = [](const char* name, const char* op, const char* read) {
    return Message()
        .text(wire::kGraphName, name)
        .message(wire::kNode, wire::node(op, {read}, {"t"}, std::string(name) + "_node"))
        .message(wire::kOutput, wire::value_info("t", DType::kF32, {2}));
  };
  const Message node =
      Message(wire::node("If", {"c"}, {"y"}, "if"))
          .message(wire::kAttribute,
                   wire::graph_attribute("then_branch", branch("then", "Relu", "a")))
          .message(wire::kAttribute,
                   wire::graph_attribute("else_branch", branch("else", "Neg", "w")));
  return Message()
      .text(wire::kGraphName, "g")
      .message(wire::kNode, node)
      .message(wire::kNode, wire::node("Abs", {"x"}, {"a"}, "abs"))  // behind its user
      .message(wire::kInitializer,
               wire::raw_tensor("w", DType::kF32, {2}, wire::raw_of<float>({1, 2})))
      .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
      .message(wire::kInput, wire::value_info("c", DType::kBool, {}))
      .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
}

TEST(Subgraphs, CapturesAreOrdinaryUses) {
  const Model model = round_trip(import_text_bytes(wire::model(if_graph())));
  const Graph& graph = model.graph;
  const NodeId node = find_op(graph, "If");
  EXPECT_TRUE(graph.is_before(find_op(graph, "Abs"), node)) << "a capture orders nodes";
  const ValueId a = graph.find("a"), w = graph.find("w");
  ASSERT_EQ(graph.uses(a).size(), 1u);
  EXPECT_EQ(graph.uses(a)[0].node(), find_op(graph, "Relu"));
  EXPECT_EQ(graph.uses(w)[0].node(), find_op(graph, "Neg"));
  ASSERT_EQ(graph.subgraphs(node).size(), 2u);
  for (RegionId region : graph.subgraphs(node)) {
    EXPECT_EQ(graph.parent(region), graph.main());
    EXPECT_EQ(graph.region_owner(region), node);
    EXPECT_EQ(graph.outputs(region).size(), 1u);
  }
  EXPECT_NO_THROW(check_model(model));
}

TEST(Subgraphs, NamesBecomeUniqueOverTheWholeGraph) {
  const Model model = import_text_bytes(wire::model(if_graph()));
  const Graph& graph = model.graph;
  EXPECT_NE(graph.value(graph.output(find_op(graph, "Relu"))).name,
            graph.value(graph.output(find_op(graph, "Neg"))).name);
  EXPECT_EQ(names_of(graph, graph.outputs()), (wire::Names{"y"}));
}

TEST(Subgraphs, AnInnerNameMayHideAnOuterOneThatComesLater) {
  // The branch calls its value `y`, as the result of the If itself: the outer one keeps the name.
  const Message branch = Message()
                             .message(wire::kNode, wire::node("Relu", {"x"}, {"y"}))
                             .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  const Message node = Message(wire::node("If", {"c"}, {"y"}, "if"))
                           .message(wire::kAttribute, wire::graph_attribute("then_branch", branch))
                           .message(wire::kAttribute, wire::graph_attribute("else_branch", branch));
  const Message graph = Message()
                            .message(wire::kNode, node)
                            .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
                            .message(wire::kInput, wire::value_info("c", DType::kBool, {}))
                            .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  const Model model = round_trip(import_text_bytes(wire::model(graph)));
  EXPECT_EQ(model.graph.value(model.graph.output(find_op(model.graph, "If"))).name, "y");
}

/// Adds x to a running sum n times; the sums are stacked.
Message loop_graph() {
  const Message body = Message()
                           .text(wire::kGraphName, "body")
                           .message(wire::kNode, wire::node("Add", {"sum_in", "x"}, {"sum_out"}))
                           .message(wire::kNode, wire::node("Identity", {"go_on"}, {"go_on_out"}))
                           .message(wire::kNode, wire::node("Identity", {"sum_out"}, {"each"}))
                           .message(wire::kInput, wire::value_info("i", DType::kI64, {}))
                           .message(wire::kInput, wire::value_info("go_on", DType::kBool, {}))
                           .message(wire::kInput, wire::value_info("sum_in", DType::kF32, {2}))
                           .message(wire::kOutput, wire::value_info("go_on_out", DType::kBool, {}))
                           .message(wire::kOutput, wire::value_info("sum_out", DType::kF32, {2}))
                           .message(wire::kOutput, wire::value_info("each", DType::kF32, {2}));
  const Message node = Message(wire::node("Loop", {"n", "", "x"}, {"sum", "sums"}, "loop"))
                           .message(wire::kAttribute, wire::graph_attribute("body", body));
  return Message()
      .text(wire::kGraphName, "g")
      .message(wire::kNode, node)
      .message(wire::kInput, wire::value_info("n", DType::kI64, {}))
      .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
      .message(wire::kOutput, wire::value_info("sum", DType::kF32, {2}))
      .message(wire::kOutput, wire::value_info("sums", DType::kF32, {"T", 2}));
}

TEST(Subgraphs, LoopBodiesHaveInputs) {
  const Model model = round_trip(import_text_bytes(wire::model(loop_graph())));
  const Graph& graph = model.graph;
  const RegionId body = graph.subgraphs(find_op(graph, "Loop")).at(0);
  EXPECT_EQ(graph.region_name(body), "body");
  EXPECT_EQ(graph.inputs(body).size(), 3u);
  EXPECT_EQ(graph.value(graph.inputs(body)[2]).kind, ValueKind::kRegionInput);
  EXPECT_NO_THROW(check_model(model));
}

TEST(Subgraphs, TypesFlowThroughThem) {
  for (const Message& source : {if_graph(), loop_graph()}) {
    Model model = import_text_bytes(wire::model(source));
    Graph& graph = model.graph;
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      Value& value = graph.value(ValueId{i});
      if (value.kind == ValueKind::kResult) value.type = {};
    }
    for (NodeId node : graph.nodes()) infer_with_schema(graph, node);
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      const Value& value = graph.value(ValueId{i});
      EXPECT_TRUE(value.type.is_tensor()) << value.name;
      // ONNX leaves the shape of loop-carried values open: it may change from turn to turn.
      EXPECT_TRUE(value.type.shape || value.name == "sum") << value.name;
    }
  }
}

Message function_model(const Message& call) {
  const Message body_node =
      Message(wire::node("LeakyRelu", {"a"}, {"b"}, "leaky"))
          .message(wire::kAttribute, Message().text(1, "alpha").text(21, "slope").number(20, 1));
  const Message function = Message()
                               .text(1, "twice")
                               .text(4, "a")
                               .text(5, "c")
                               .text(6, "unused")
                               .message(7, body_node)
                               .message(7, wire::node("Add", {"b", "b"}, {"c"}, "add"))
                               .text(8, "doubles")
                               .message(9, Message().text(1, "").number(2, 17))
                               .text(10, "my.domain")
                               .message(11, wire::float_attribute("slope", 0.25f));
  const Message graph = Message()
                            .text(wire::kGraphName, "g")
                            .message(wire::kNode, call)
                            .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
                            .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  return wire::model_header()
      .message(8, Message().text(1, "my.domain").number(2, 1))
      .message(7, graph)
      .message(wire::kFunction, function);
}

TEST(Functions, KeepBodyAttributesAndDefaults) {
  const Message call = Message(wire::node("twice", {"x"}, {"y"}, "call")).text(7, "my.domain");
  const Model model = round_trip(import_text_bytes(function_model(call).bytes()));
  ASSERT_EQ(model.functions.size(), 1u);
  const Function& function = model.functions[0];
  EXPECT_EQ(function.domain + "." + function.name, "my.domain.twice");
  EXPECT_EQ(function.attributes, (wire::Names{"unused"}));
  ASSERT_EQ(function.default_attributes.size(), 1u);
  EXPECT_EQ(std::get<float>(function.default_attributes[0].second), 0.25f);
  EXPECT_EQ(function.opsets.at(""), 17);
  EXPECT_EQ(function.body.doc, "doubles");
  const Node& leaky = function.body.node(find_op(function.body, "LeakyRelu"));
  EXPECT_EQ(std::get<AttributeReference>(*leaky.attributes.find("alpha")).name, "slope");
  EXPECT_EQ(names_of(function.body, function.body.inputs()), (wire::Names{"a"}));
  EXPECT_NO_THROW(check_model(model));
}

TEST(Functions, InitializersOfABodyBecomeConstantNodes) {
  Model model = import_text_bytes(wire::model(wire::relu_graph(), 23));
  Function function;
  function.domain = kHalfnoteDomain;
  function.name = "AddOne";
  function.overload = "f32";
  function.opsets[""] = kOpsetVersion;
  Graph& body = function.body;
  const ValueId x = body.add_input(body.main(), "x", {});
  const ValueId one = body.add_initializer("one", Tensor::scalar(1.0f));
  body.add_output(body.main(), body.output(body.create({"Add", {x, one}}, {"y"}, body.end())));
  model.functions.push_back(std::move(function));
  Graph& graph = model.graph;
  const NodeId relu = find_op(graph, "Relu");
  graph.node(relu).op = "AddOne";
  graph.node(relu).domain = kHalfnoteDomain;
  graph.node(relu).overload = "f32";

  const Model read = round_trip(model);
  EXPECT_EQ(read.opsets.at(std::string(kHalfnoteDomain)), 1);
  EXPECT_EQ(read.functions.at(0).overload, "f32");
  EXPECT_EQ(read.functions.at(0).body.node_count(), 2u);
  EXPECT_NO_THROW(check_model(model));
}

// ONNX tells overloads apart by a third name; our bodies differ in types, so the right one must be
// taken.
TEST(Functions, OverloadsHaveTheirOwnTypes) {
  Model model = import_text_bytes(wire::model(wire::relu_graph(), 23));
  Graph& graph = model.graph;
  const ValueId x = graph.find("x");
  for (const auto& [overload, dtype] : {std::pair("f16", DType::kF16), {"bf16", DType::kBF16}}) {
    Function function;
    function.domain = kHalfnoteDomain;
    function.name = "Narrow";
    function.overload = overload;
    function.opsets[""] = kOpsetVersion;
    Graph& body = function.body;
    const ValueId in = body.add_input(body.main(), "x", {});
    const NodeId cast =
        body.create({"Cast", {in}, {{"to", static_cast<int64_t>(dtype)}}}, 1, body.end());
    body.add_output(body.main(), body.output(cast));
    model.functions.push_back(std::move(function));
    const NodeId call =
        graph.create({"Narrow", {x}, {}, std::string(kHalfnoteDomain)}, 1, graph.end());
    graph.node(call).overload = overload;
    graph.value(graph.output(call)).type = ValueType::tensor(dtype, SymbolicShape{2});
    graph.add_output(graph.main(), graph.output(call));
  }
  EXPECT_NO_THROW(check_model(round_trip(model)));
  graph.node(find_op(graph, "Narrow")).overload = "bf16";  // the result is declared as f16
  EXPECT_THROW(check_model(model), Error);
}

TEST(Functions, MissingImportOfTheirOwnDomainIsForgiven) {
  const Message call = Message(wire::node("twice", {"x"}, {"y"}, "call")).text(7, "my.domain");
  std::string bytes = function_model(call).bytes();
  const std::string import =
      Message().message(8, Message().text(1, "my.domain").number(2, 1)).bytes();
  bytes.erase(bytes.find(import), import.size());
  EXPECT_EQ(import_text_bytes(bytes).opsets.at("my.domain"), 1);
  const Message unknown = Message(wire::node("f", {"x"}, {"y"}, "call")).text(7, "other");
  const Error error = import_error(function_model(unknown).bytes());
  EXPECT_THAT(error.what(), testing::HasSubstr("does not import the op-set of \"other\""));
  EXPECT_EQ(error.place().node, "call");
}

Message calling(const char* name, const wire::Names& callees) {
  Message function = Message().text(1, name).text(4, "a").text(5, "r");
  std::string last = "a";
  for (size_t i = 0; i < callees.size(); ++i) {
    const std::string next = i + 1 == callees.size() ? "r" : "v" + std::to_string(i);
    function.message(7, Message(wire::node(callees[i], {last}, {next})).text(7, "d"));
    last = next;
  }
  return function.text(10, "d").message(9, Message().text(1, "d").number(2, 1));
}

TEST(Functions, MayNotCallEachOtherInACircle) {
  const std::string bytes = wire::model_header()
                                .message(7, wire::relu_graph())
                                .message(wire::kFunction, calling("f", {"g"}))
                                .message(wire::kFunction, calling("g", {"f"}))
                                .bytes();
  EXPECT_THAT(import_error(bytes).what(), testing::HasSubstr("call each other in a circle"));
}

TEST(Functions, MayNotExpandWithoutBound) {
  // Each function calls the one before it ten times: 10^7 nodes out of 70.
  Message model = wire::model_header().message(8, Message().text(1, "d").number(2, 1));
  model.message(7, Message()
                       .message(wire::kNode, Message(wire::node("f6", {"x"}, {"y"})).text(7, "d"))
                       .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
                       .message(wire::kOutput, wire::value_info("y", DType::kF32, {2})));
  for (int i = 0; i < 7; ++i) {
    const std::string callee = i == 0 ? "leaf" : "f" + std::to_string(i - 1);
    model.message(wire::kFunction,
                  calling(("f" + std::to_string(i)).c_str(), wire::Names(10, callee)));
  }
  EXPECT_THAT(import_error(model.bytes()).what(), testing::HasSubstr("over the limit"));
}

TEST(Functions, ALargeModelMayBeMadeOfThem) {
  Message graph;
  constexpr int kLayers = 1000;  // 2,000 nodes by calls; a twenty-fifth of the limit is 1,000
  for (int i = 0; i < kLayers; ++i) {
    const std::string from = i == 0 ? "x" : "v" + std::to_string(i - 1);
    const std::string to = i + 1 == kLayers ? "y" : "v" + std::to_string(i);
    graph.message(wire::kNode, Message(wire::node("layer", {from}, {to})).text(7, "d"));
  }
  graph.message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
      .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  const auto leaf = [](const char* name) {
    return Message().text(1, name).text(4, "a").text(5, "r").message(
        7, Message(wire::node("Neg", {"a"}, {"r"})));
  };
  const std::string bytes =
      wire::model_header()
          .message(8, Message().text(1, "d").number(2, 1))
          .message(7, graph)
          .message(wire::kFunction, calling("layer", {"leaf", "leaf"}))
          .message(wire::kFunction,
                   leaf("leaf").text(10, "d").message(9, Message().text(1, "").number(2, 20)))
          .bytes();
  ImportOptions options;
  options.limits.nodes = 25000;
  EXPECT_EQ(import_text_bytes(bytes, options).graph.node_count(), kLayers);
}

}  // namespace
}  // namespace halfnote
