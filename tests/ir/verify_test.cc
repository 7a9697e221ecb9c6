// Each rule of the verifier has a graph that breaks it.
#include "compiler/ir/verify.h"

#include <functional>

#include "compiler/ir/graph_access.h"
#include "tests/ir/support.h"

namespace halfnote {
namespace {

using testing::HasSubstr;

constexpr std::string_view kSound = R"(g (float[4] x, bool c) => (float[4] y) <
    float[4] w = {1, 2, 3, 4},  # trainable
    float[4] m = {0, 0, 0, 0}
> {
  [a] float[4] a = Add (x, w)
  [b] float[4] b = Mul (a, a)
  [i] float[4] i = If (c) <body = r (float[4] p) => (float[4] q) <float k = {1}> {
    [q] float[4] q = Mul (b, p)
  }>
  [y] float[4] y = Neg (i)
  state weight w -> y
  state moment m -> b
})";

struct Break {
  const char* title;
  std::function<void(Graph&)> damage;
  const char* message;
};

void PrintTo(const Break& b, std::ostream* os) { *os << b.title; }

NodeId at(const Graph& graph, std::string_view name) {
  for (NodeId node : graph.all_nodes()) {
    if (graph.node(node).name == name) return node;
  }
  return NodeId{};
}

Value& value(Graph& graph, std::string_view name) { return graph.value(graph.find(name)); }
RegionId body(const Graph& graph) { return graph.subgraphs(at(graph, "i"))[0]; }

class Broken : public testing::TestWithParam<Break> {};

TEST_P(Broken, IsFound) {
  Graph graph = parse_graph(kSound, "sound");
  ASSERT_NO_THROW(verify(graph, {.typed = true}));
  GetParam().damage(graph);
  EXPECT_THAT(error_of([&] { verify(graph, {.typed = true}); }, ErrorCode::kInternal),
              HasSubstr(GetParam().message));
  EXPECT_THAT(error_of([&] { verify(graph, {.typed = true, .code = ErrorCode::kModel}); },
                       ErrorCode::kModel),
              HasSubstr("graph \"g\" is not valid: "));
}

INSTANTIATE_TEST_SUITE_P(
    Uses, Broken,
    testing::Values(
        Break{"a use is missing", [](Graph& g) { GraphAccess::uses(g, g.find("x")).clear(); },
              "node \"a\" (Add) reads value \"x\", whose list of uses does not say so"},
        Break{"a use too many",
              [](Graph& g) {
                GraphAccess::uses(g, g.find("x"))
                    .push_back({UseKind::kNodeInput, at(g, "y").index, 0});
              },
              "value \"x\" lists a use that does not exist"},
        Break{"a use of a slot that does not exist",
              [](Graph& g) {
                GraphAccess::uses(g, g.find("x")).push_back({UseKind::kRegionOutput, 0, 9});
              },
              "value \"x\" lists a use that does not exist"},
        Break{"a use of a state that does not exist",
              [](Graph& g) {
                GraphAccess::uses(g, g.find("x")).push_back({UseKind::kStateNext, 0, 9});
              },
              "value \"x\" lists a use that does not exist"},
        Break{"the same use twice",
              [](Graph& g) {
                auto& uses = GraphAccess::uses(g, g.find("a"));
                uses.push_back(uses[0]);
              },
              "value \"a\" lists a use whose reader points to another place of the list"},
        Break{"a wrong position", [](Graph& g) { GraphAccess::use_index(g, at(g, "b"), 0) = 1; },
              "node \"b\" (Mul) reads value \"a\", whose list of uses does not say so"},
        Break{"an operand changed behind the graph's back",
              [](Graph& g) { GraphAccess::inputs(g, at(g, "y"))[0] = g.find("a"); },
              "value \"i\" lists a use that does not exist"},
        Break{"an operand that does not exist",
              [](Graph& g) { GraphAccess::inputs(g, at(g, "y"))[0] = ValueId{12345}; },
              "reads a value that does not exist"}));

INSTANTIATE_TEST_SUITE_P(
    Order, Broken,
    testing::Values(
        Break{"a reader before its definition",
              [](Graph& g) { g.move_before(at(g, "y"), g.before(at(g, "a"))); },
              "node \"y\" (Neg) reads value \"i\" before it is defined"},
        Break{"a capture before its definition",
              [](Graph& g) { g.move_before(at(g, "i"), g.before(at(g, "a"))); },
              "node \"q\" (Mul) reads value \"b\" before it is defined"},
        Break{"a node reads itself", [](Graph& g) { g.set_input(at(g, "b"), 1, g.find("b")); },
              "node \"b\" (Mul) reads value \"b\" before it is defined"},
        Break{"a capture of the owner's own result",
              [](Graph& g) { g.set_input(at(g, "q"), 0, g.find("i")); },
              "node \"q\" (Mul) reads value \"i\" before it is defined"},
        Break{"a value of an inner region",
              [](Graph& g) { g.set_input(at(g, "y"), 0, g.find("q")); },
              "node \"y\" (Neg) reads value \"q\" of a region it is not in"},
        Break{"an output of an inner region",
              [](Graph& g) { g.set_outputs(g.main(), {g.find("k")}); },
              "output 0 of the graph reads value \"k\" of a region it is not in"},
        Break{"order labels", [](Graph& g) { GraphAccess::order(g, at(g, "b")) = 0; },
              "node \"b\" (Mul) does not have a greater order than the node before it"},
        Break{"a broken back link", [](Graph& g) { GraphAccess::prev(g, at(g, "b")) = NodeId{}; },
              "node \"b\" (Mul) is not linked to the node before it"},
        Break{"a list cut short", [](Graph& g) { GraphAccess::next(g, at(g, "b")) = NodeId{}; },
              "the last node of the graph is not the end of its list"},
        Break{"a list with a loop", [](Graph& g) { GraphAccess::next(g, at(g, "b")) = at(g, "a"); },
              "node \"a\" (Add) is linked twice"},
        Break{"a wrong count", [](Graph& g) { ++GraphAccess::alive_nodes(g); },
              "the graph counts 6 nodes but links 5"}));

INSTANTIATE_TEST_SUITE_P(
    Alive, Broken,
    testing::Values(Break{"a removed node", [](Graph& g) { g.node(at(g, "b")).alive = false; },
                          "node \"b\" (Mul) is removed but still linked"},
                    Break{"a removed operand", [](Graph& g) { value(g, "a").alive = false; },
                          "node \"b\" (Mul) reads value \"a\", which is removed"},
                    Break{"a removed value with uses",
                          [](Graph& g) { value(g, "a").alive = false; },
                          "removed value \"a\" has uses"},
                    Break{"a removed result", [](Graph& g) { value(g, "y").alive = false; },
                          "value \"y\" is removed but still a result"},
                    Break{"a removed input", [](Graph& g) { value(g, "p").alive = false; },
                          "value \"p\" is removed but still an input"}));

INSTANTIATE_TEST_SUITE_P(
    Regions, Broken,
    testing::Values(
        Break{"a wrong owner", [](Graph& g) { GraphAccess::owner(g, body(g)) = at(g, "a"); },
              "region 1 is held by node \"i\" (If) but owned by node \"a\" (Add)"},
        Break{"no owner", [](Graph& g) { GraphAccess::owner(g, body(g)) = NodeId{}; },
              "region 1 is held by node \"i\" (If) but owned by no node"},
        Break{"held twice", [](Graph& g) { g.node(at(g, "a")).attributes.set("r", body(g)); },
              "region 1 is held twice"},
        Break{"dropped but not empty", [](Graph& g) { g.node(at(g, "i")).attributes = {}; },
              "region 1 is held by no node but is not empty"},
        Break{"a region that does not exist",
              [](Graph& g) { g.node(at(g, "i")).attributes.set("more", RegionId{77}); },
              "node \"i\" (If) holds a region that does not exist"},
        Break{"not below its owner",
              [](Graph& g) {
                const RegionId inner = g.add_region(body(g));
                NodeSpec spec;
                spec.op = "If";
                spec.name = "new";
                spec.attributes.set("r", inner);
                g.create(std::move(spec), 0, g.end());
              },
              "region 2 does not stand below the region of its owner"},
        Break{"the main region owned",
              [](Graph& g) { GraphAccess::owner(g, g.main()) = at(g, "a"); },
              "the main region has an owner"},
        Break{"a node in another region", [](Graph& g) { g.node(at(g, "q")).region = g.main(); },
              "node \"q\" (Mul) says it is in another region"},
        Break{"an input in another region", [](Graph& g) { value(g, "p").region = g.main(); },
              "value \"p\" is an input of region 1 but says otherwise"},
        Break{"an input of no region", [](Graph& g) { value(g, "w").kind = ValueKind::kInput; },
              "value \"w\" is an input of no region"}));

INSTANTIATE_TEST_SUITE_P(
    Values, Broken,
    testing::Values(
        Break{"two values of one name", [](Graph& g) { value(g, "a").name = "b"; },
              "the name of value \"b\" leads to another value, or to none"},
        Break{"no name", [](Graph& g) { value(g, "a").name = ""; }, "has no name"},
        Break{"a result of another node", [](Graph& g) { value(g, "a").producer = at(g, "b"); },
              "value \"a\" is a result of node \"a\" (Add) but says otherwise"},
        Break{"a result of no node", [](Graph& g) { value(g, "a").producer = NodeId{}; },
              "value \"a\" is not a result of its producer"},
        Break{"a result at another place", [](Graph& g) { value(g, "a").output = 1; },
              "value \"a\" is a result of node \"a\" (Add) but says otherwise"},
        Break{"an initializer of another type", [](Graph& g) { value(g, "w").type = floats({5}); },
              "initializer value \"w\" is float[5] but its data is float[4]"},
        Break{"an initializer without data", [](Graph& g) { value(g, "k").tensor = {}; },
              "initializer value \"k\" has no data"},
        Break{"a trainable input", [](Graph& g) { value(g, "x").trainable = true; },
              "value \"x\" is trainable but no initializer"},
        Break{"no type", [](Graph& g) { value(g, "a").type = {}; }, "value \"a\" has no type"},
        Break{"no element type",
              [](Graph& g) { value(g, "x").type = ValueType::tensor(DType::kUndefined); },
              "value \"x\" has no type"},
        Break{"no op", [](Graph& g) { g.node(at(g, "a")).op = ""; }, "node \"a\" () has no op"},
        Break{"an absent output",
              [](Graph& g) {
                g.replace_use({UseKind::kRegionOutput, 0, 0}, {});
              },
              "output 0 of the graph is absent"},
        Break{"an attribute reference",
              [](Graph& g) {
                g.node(at(g, "a")).attributes.set("k", AttributeReference{"k", 2});
              },
              "attribute \"k\" of node \"a\" (Add) is a reference, which only a function body may "
              "hold"}));

INSTANTIATE_TEST_SUITE_P(
    States, Broken,
    testing::Values(
        Break{"of an input", [](Graph& g) { value(g, "w").kind = ValueKind::kRegionInput; },
              "state \"w\" is no initializer of the graph"},
        Break{"of a removed initializer", [](Graph& g) { g.remove_value(g.find("m")); },
              "state \"m\" is no initializer of the graph"},
        Break{"another element type", [](Graph& g) { value(g, "b").type.dtype = DType::kBF16; },
              "state \"m\" is float[4] but its new value \"b\" is bfloat16[4]"},
        Break{"another shape",
              [](Graph& g) {
                value(g, "b").type = floats({4, 1});
              },
              "state \"m\" is float[4] but its new value \"b\" is float[4,1]"},
        Break{"another dim", [](Graph& g) { value(g, "b").type = floats({5}); },
              "but its new value \"b\" is float[5]"},
        Break{"a sequence",
              [](Graph& g) {
                value(g, "b").type = {TypeKind::kSequence, {}, {}, {}, nullptr};
              },
              "but its new value \"b\" is seq(?)"},
        Break{"a new value of an inner region", [](Graph& g) { g.set_state_next(1, g.find("q")); },
              "state \"m\" reads value \"q\" of a region it is not in"},
        Break{"no new value", [](Graph& g) { g.set_state_next(1, ValueId{}); },
              "state \"m\" has no new value"},
        Break{"two new values",
              [](Graph& g) { g.add_state(g.find("m"), g.find("a"), StateKind::kMoment); },
              "state \"m\" has two new values"}));

TEST(Verify, SymbolicShapesOfStatesMayTurnOutEqual) {
  Graph graph = parse_graph(kSound, "sound");
  value(graph, "b").type = floats({Dim::named("N")});
  verify(graph, {.typed = true});
  value(graph, "b").type = ValueType::tensor(DType::kF32);
  verify(graph, {.typed = true});
}

TEST(Verify, TypesAreAskedForOnRequest) {
  const Graph graph = parse_graph("g (x) => (y) { y = Neg (x) }", "untyped");
  verify(graph);
  EXPECT_THAT(error_of([&] { verify(graph, {.typed = true}); }, ErrorCode::kInternal),
              HasSubstr("value \"x\" has no type; value \"y\" has no type"));
}

TEST(Verify, LongListsAreCut) {
  std::string text = "g (x) => () {";
  for (int i = 0; i < 50; ++i) text += " v" + std::to_string(i) + " = Neg (x)";
  const Graph graph = parse_graph(text + "}", "untyped");
  EXPECT_THAT(error_of([&] { verify(graph, {.typed = true}); }, ErrorCode::kInternal),
              HasSubstr("; and 31 more"));
}

struct BadModel {
  const char* text;
  const char* message;
};

class BrokenModel : public testing::TestWithParam<BadModel> {};

TEST_P(BrokenModel, IsFound) {
  const Model model = parse_model(GetParam().text, "m.onnxtxt");
  EXPECT_THAT(error_of([&] { verify(model, {.code = ErrorCode::kModel}); }, ErrorCode::kModel),
              testing::AllOf(HasSubstr("m.onnxtxt: "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Verify, BrokenModel,
    testing::Values(
        BadModel{"g () => () { = Op <a = @b> () }", "graph \"g\" is not valid: attribute \"a\""},
        BadModel{"g () => () {} training_info s { algorithm: a () => () { = Op <a = @b> () } }",
                 "training step \"s\" is not valid"},
        BadModel{
            "g () => () {} training_info s { initialization: i (x) => (x) {} algorithm: a () => "
            "() {} }",
            "the initialization has inputs"},
        BadModel{"g () => () {} training_info s { algorithm: a () => () {} } training_info s { "
                 "algorithm: a () => () {} }",
                 "its name is taken"},
        BadModel{
            "g () => () {} training_info s { initialization_binding: [w = v] algorithm: a () => "
            "() {} }",
            "\"w\" is initialized but is no initializer"},
        BadModel{"g () => () <float w = {1}> {} training_info s { initialization_binding: [w = v] "
                 "algorithm: a () => () {} }",
                 "\"v\" is no output of the initialization"},
        BadModel{
            "g () => () <float w = {1}> {} training_info s { initialization: i () => (float v) { "
            "v = C () } initialization_binding: [w = v, w = v] algorithm: a () => () {} }",
            "\"w\" is initialized twice"},
        BadModel{"g () => () {} training_info s { initialization: i () => (int64 v) { v = C () } "
                 "initialization_binding: [w = v] algorithm: a () => () <float w = {1}> {} }",
                 "\"w\" is float"}));

TEST(Verify, FunctionBodiesMayHoldReferencesAndNoTypes) {
  verify(parse_model("g (float x) => (float x) {} f <a> (x) => (y) { y = Op <a = @a> (x) }", "m"),
         {.typed = true});
}

}  // namespace
}  // namespace halfnote
