// Operations of Graph, one by one.
#include "compiler/ir/graph.h"

#include "tests/ir/support.h"

namespace halfnote {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> op_list(const Graph& graph, RegionId region = RegionId{0}) {
  std::vector<std::string> ops;
  for (NodeId node : graph.nodes(region)) ops.push_back(graph.node(node).op);
  return ops;
}

NodeId node_before(Graph& graph, NodeId before, std::string op) {
  NodeSpec spec;
  spec.op = std::move(op);
  return graph.create(std::move(spec), 1, graph.before(before));
}

struct Chain {
  Graph graph;
  ValueId x, a, b, c;
};

/// x -> A -> B -> C, C is the output; B reads x too.
Chain chain() {
  Chain t;
  t.x = t.graph.add_input(t.graph.main(), "x", floats({4}));
  t.a = add_op(t.graph, "A", {t.x}, "a");
  t.b = add_op(t.graph, "B", {t.a, t.x}, "b");
  t.c = add_op(t.graph, "C", {t.b, t.b}, "c");
  t.graph.set_outputs(t.graph.main(), {t.c});
  return t;
}

/// An If with a body that reads `captured`.
NodeId add_if(Graph& graph, ValueId captured, InsertPoint at) {
  const RegionId body = graph.add_region(at.region);
  const ValueId inner = add_op(graph, "Neg", {captured}, "inner", body);
  graph.set_outputs(body, {inner});
  NodeSpec spec;
  spec.op = "If";
  spec.attributes.set("then_branch", body);
  return graph.create(std::move(spec), 1, at);
}

TEST(Graph, CreateLinksUsesBothWays) {
  Chain t = chain();
  verify(t.graph, {.typed = true});
  EXPECT_EQ(t.graph.node_count(), 3u);
  EXPECT_EQ(t.graph.uses(t.x).size(), 2u);
  EXPECT_EQ(t.graph.uses(t.b).size(), 2u);
  const NodeId c = t.graph.value(t.c).producer;
  EXPECT_THAT(t.graph.users(t.b), ElementsAre(c));
  EXPECT_EQ(t.graph.input(c, 1), t.b);
  EXPECT_FALSE(t.graph.input(c, 2).valid());
  EXPECT_FALSE(t.graph.output(c, 1).valid());
}

TEST(Graph, UsersComeInTheOrderOfTheGraph) {
  Graph graph;
  const ValueId x = graph.add_input(graph.main(), "x", floats({4}));
  const NodeId last = graph.value(add_op(graph, "Last", {x}, "l")).producer;
  const NodeId first = node_before(graph, last, "First");
  graph.add_node_input(first, x);
  EXPECT_THAT(graph.users(x), ElementsAre(first, last));
  EXPECT_TRUE(graph.is_before(first, last));
}

TEST(Graph, ReplaceUsesMovesAllOfThem) {
  Chain t = chain();
  t.graph.replace_uses(t.b, t.a);
  verify(t.graph);
  EXPECT_FALSE(t.graph.has_uses(t.b));
  EXPECT_EQ(t.graph.uses(t.a).size(), 3u);
  t.graph.replace_uses(t.a, t.a);
  EXPECT_EQ(t.graph.uses(t.a).size(), 3u);
  t.graph.replace_uses(t.c, t.x);
  EXPECT_THAT(t.graph.outputs(), ElementsAre(t.x));
  verify(t.graph);
}

TEST(Graph, ReplaceUsesIfMovesSome) {
  Chain t = chain();
  t.graph.replace_uses_if(t.b, t.x, [](const Use& use) { return use.slot == 1; });
  const NodeId c = t.graph.value(t.c).producer;
  EXPECT_THAT(t.graph.inputs(c), ElementsAre(t.b, t.x));
  verify(t.graph);
}

TEST(Graph, ReplaceUseCanLeaveAnOperandAbsent) {
  Chain t = chain();
  const NodeId b = t.graph.value(t.b).producer;
  t.graph.replace_use({UseKind::kNodeInput, b.index, 0}, ValueId{});
  EXPECT_FALSE(t.graph.has_uses(t.a));
  t.graph.set_input(b, 0, t.x);
  EXPECT_EQ(t.graph.uses(t.x).size(), 3u);
  verify(t.graph);
}

TEST(Graph, InputsGrowShrinkAndAreAbsent) {
  Chain t = chain();
  const NodeId c = t.graph.value(t.c).producer;
  t.graph.set_input(c, 4, t.x);
  EXPECT_EQ(t.graph.inputs(c).size(), 5u);
  EXPECT_FALSE(t.graph.input(c, 3).valid());
  verify(t.graph);
  t.graph.resize_inputs(c, 4);  // what is absent at the end goes too
  EXPECT_THAT(t.graph.inputs(c), ElementsAre(t.b, t.b));
  t.graph.resize_inputs(c, 0);
  EXPECT_FALSE(t.graph.has_uses(t.b));
  verify(t.graph);
}

TEST(Graph, OutputsAreAddedAndDropped) {
  Chain t = chain();
  const NodeId a = t.graph.value(t.a).producer;
  const ValueId third = t.graph.add_node_output(a, 2, "mask");
  EXPECT_THAT(t.graph.outputs(a), ElementsAre(t.a, ValueId{}, third));
  EXPECT_EQ(t.graph.value(third).output, 2u);
  verify(t.graph);
  t.graph.drop_output(a, 2);
  EXPECT_THAT(t.graph.outputs(a), ElementsAre(t.a));
  EXPECT_FALSE(t.graph.find("mask").valid());
  verify(t.graph);
}

TEST(Graph, AbsentResultsAreGivenAsADash) {
  Graph graph;
  NodeSpec spec;
  spec.op = "Op";
  const NodeId node = graph.create(std::move(spec), {"a", "-", "c"}, graph.end());
  EXPECT_FALSE(graph.output(node, 1).valid());
  EXPECT_EQ(graph.value(graph.output(node, 2)).name, "c");
  verify(graph);
}

TEST(Graph, RemoveTakesUsesAndNamesAway) {
  Chain t = chain();
  t.graph.set_outputs(t.graph.main(), {t.b});
  t.graph.remove(t.graph.value(t.c).producer);
  EXPECT_EQ(t.graph.node_count(), 2u);
  EXPECT_FALSE(t.graph.find("c").valid());
  EXPECT_EQ(t.graph.uses(t.b).size(), 1u);
  EXPECT_EQ(t.graph.unique_name("c"), "c");
  verify(t.graph);
}

TEST(Graph, RemoveTakesSubgraphsAway) {
  Chain t = chain();
  const NodeId node = add_if(t.graph, t.a, t.graph.end());
  const RegionId body = t.graph.subgraphs(node)[0];
  t.graph.add_initializer(body, "k", Tensor::scalar(1.0f));
  const ValueId p = t.graph.add_input(body, "p", floats({4}));
  const NodeId inner = add_if(t.graph, p, t.graph.end(body));
  verify(t.graph);
  EXPECT_EQ(t.graph.region_owner(t.graph.subgraphs(inner)[0]), inner);
  EXPECT_TRUE(t.graph.is_inside(t.graph.subgraphs(inner)[0], body));
  EXPECT_FALSE(t.graph.is_inside(body, t.graph.subgraphs(inner)[0]));
  EXPECT_EQ(t.graph.node_count(), 7u);
  t.graph.remove(node);
  EXPECT_EQ(t.graph.node_count(), 3u);
  EXPECT_EQ(t.graph.uses(t.a).size(), 1u);
  EXPECT_FALSE(t.graph.find("k").valid());
  EXPECT_FALSE(t.graph.find("p").valid());
  EXPECT_THAT(t.graph.initializers(body), IsEmpty());
  verify(t.graph);
}

TEST(Graph, AllNodesGoesIntoSubgraphsInOrder) {
  Chain t = chain();
  const NodeId node = add_if(t.graph, t.a, t.graph.after(t.graph.value(t.a).producer));
  const RegionId body = t.graph.subgraphs(node)[0];
  add_if(t.graph, t.x, t.graph.end(body));
  std::vector<std::string> ops;
  for (NodeId id : t.graph.all_nodes()) ops.push_back(t.graph.node(id).op);
  EXPECT_THAT(ops, ElementsAre("A", "If", "Neg", "If", "Neg", "B", "C"));
}

TEST(Graph, AllNodesWalksSeveralSubgraphsAndEmptyOnes) {
  const Graph graph = graph_of(R"(g (x) => (y) {
    y = If (x) <a = r1 () => () {}, b = r2 () => (p) { p = P (x) }, c = r3 () => (q) { q = Q (x) r = R (q) }>
    z = Z (y)
  })");
  std::vector<std::string> ops;
  for (NodeId id : graph.all_nodes()) ops.push_back(graph.node(id).op);
  EXPECT_THAT(ops, ElementsAre("If", "P", "Q", "R", "Z"));
}

TEST(Graph, MoveKeepsListsAndRegionsRight) {
  Chain t = chain();
  const NodeId a = t.graph.value(t.a).producer, c = t.graph.value(t.c).producer;
  t.graph.move_before(c, t.graph.before(a));
  EXPECT_THAT(op_list(t.graph), ElementsAre("C", "A", "B"));
  t.graph.move_before(c, t.graph.end());
  t.graph.move_before(a, t.graph.before(a));  // stays
  t.graph.move_before(a, t.graph.after(a));   // stays
  EXPECT_THAT(op_list(t.graph), ElementsAre("A", "B", "C"));
  verify(t.graph);
}

TEST(Graph, MoveIntoARegionTakesResultsAndSubgraphsAlong) {
  Chain t = chain();
  const NodeId outer = add_if(t.graph, t.x, t.graph.before(t.graph.value(t.b).producer));
  const RegionId body = t.graph.subgraphs(outer)[0];
  const NodeId inner = add_if(t.graph, t.a, t.graph.before(outer));
  t.graph.move_before(inner, t.graph.end(body));
  EXPECT_EQ(t.graph.value(t.graph.output(inner)).region, body);
  EXPECT_EQ(t.graph.parent(t.graph.subgraphs(inner)[0]), body);
  EXPECT_EQ(t.graph.node(inner).region, body);
  verify(t.graph);
}

// Insertion is cheap wherever it happens: at one place thousands of times, from both sides. What
// matters for speed is that no insertion renumbers the whole list; that the order stays right is
// checked by the verifier.
TEST(Graph, OrderHoldsAfterThousandsOfInsertions) {
  Graph graph;
  const ValueId x = graph.add_input(graph.main(), "x", floats({4}));
  const NodeId last = graph.value(add_op(graph, "Last", {x}, "last")).producer;
  NodeId before_last, first;
  for (int i = 0; i < 20000; ++i) before_last = node_before(graph, last, "Before");
  first = graph.first(graph.main());
  for (int i = 0; i < 20000; ++i) first = node_before(graph, first, "First");
  const NodeId middle = graph.prev(before_last);
  for (int i = 0; i < 20000; ++i) {
    NodeSpec spec;
    spec.op = "After";
    graph.create(std::move(spec), 1, graph.after(middle));
  }
  verify(graph);
  EXPECT_EQ(graph.node_count(), 60001u);
  EXPECT_TRUE(graph.is_before(first, middle));
  EXPECT_TRUE(graph.is_before(middle, before_last));
  EXPECT_EQ(graph.first(graph.main()), first);
}

TEST(Graph, NamesAreUniqueAndCanBeFreed) {
  Graph graph;
  const ValueId a = graph.add_initializer("n", Tensor::scalar(1.0f));
  const ValueId b = graph.add_initializer("n", Tensor::scalar(2.0f));
  EXPECT_EQ(graph.value(b).name, "n_1");
  EXPECT_EQ(graph.unique_name("n"), "n_2");
  EXPECT_EQ(graph.unique_name(""), "value");
  graph.rename(a, "m");
  EXPECT_EQ(graph.find("m"), a);
  EXPECT_FALSE(graph.find("n").valid());
  graph.rename(b, "n_1");  // its own name
  graph.remove_value(a);
  EXPECT_FALSE(graph.find("m").valid());
  EXPECT_THAT(graph.initializers(), ElementsAre(b));
  verify(graph);
}

TEST(Graph, RemovedInputsLeaveTheList) {
  Graph graph;
  const ValueId a = graph.add_input(graph.main(), "a", floats({1}));
  const ValueId b = graph.add_input(graph.main(), "b", floats({1}));
  graph.remove_value(a);
  EXPECT_THAT(graph.inputs(), ElementsAre(b));
  verify(graph);
}

TEST(Graph, ConstantsAreInitializersAndConstantNodesThatNobodyTrains) {
  Graph graph = graph_of(R"(g (x) => () <float a = {1}, float w = {2},  # trainable
    float s = {3}> {
    c = Constant <value = float {4}> ()
    i = Constant <value_int = 1> ()
    o = other.Constant <value = float {4}> ()
    state counter s -> s })");
  const auto constant = [&](const char* name) { return graph.constant(graph.find(name)); };
  ASSERT_NE(constant("a"), nullptr);
  EXPECT_EQ(constant("a")->at_as_double(0), 1);
  ASSERT_NE(constant("c"), nullptr);
  EXPECT_EQ(constant("c")->at_as_double(0), 4);
  for (const char* name : {"w", "s", "i", "o", "x"}) EXPECT_EQ(constant(name), nullptr) << name;
  EXPECT_EQ(graph.constant(ValueId{}), nullptr);
}

TEST(Graph, StatesAreUsesAndMoveUpWhenOneGoes) {
  Graph graph;
  const ValueId a = graph.add_initializer("a", Tensor::scalar(1.0f));
  const ValueId b = graph.add_initializer("b", Tensor::scalar(1.0f));
  const ValueId next = add_op(graph, "Next", {a, b}, "next");
  graph.value(next).type = floats({});
  graph.add_state(a, next, StateKind::kWeight);
  graph.add_state(b, b, StateKind::kCounter);
  graph.set_state_next(1, next);
  EXPECT_EQ(graph.uses(next).size(), 2u);
  EXPECT_EQ(graph.state_of(b), 1u);
  verify(graph, {.typed = true});
  graph.remove_state(0);
  EXPECT_EQ(graph.state_of(b), 0u);
  EXPECT_FALSE(graph.state_of(a).has_value());
  EXPECT_EQ(graph.uses(next).size(), 1u);
  verify(graph);
  graph.replace_uses(next, b);
  EXPECT_EQ(graph.states()[0].next, b);
  verify(graph);
}

TEST(Graph, TheNameOfTheMainRegionIsTheGraphs) {
  Graph graph;
  graph.region_name(graph.main()) = "main";
  EXPECT_EQ(graph.name, "main");
}

TEST(Graph, RolesAndStateKindsHaveNames) {
  for (int i = 0; i < 5; ++i) {
    const auto role = static_cast<Role>(i);
    EXPECT_EQ(role_from_name(role_name(role)), role);
  }
  for (int i = 0; i < 7; ++i) {
    const auto kind = static_cast<StateKind>(i);
    EXPECT_EQ(state_kind_from_name(state_kind_name(kind)), kind);
  }
  EXPECT_FALSE(role_from_name("backwards").has_value());
  EXPECT_FALSE(state_kind_from_name("").has_value());
}

TEST(Graph, ACopyIsIndependent) {
  Chain t = chain();
  Graph copy = t.graph;
  copy.set_outputs(copy.main(), {});
  copy.remove(copy.value(t.c).producer);
  verify(copy);
  verify(t.graph);
  EXPECT_EQ(t.graph.node_count(), 3u);
}

}  // namespace
}  // namespace halfnote
