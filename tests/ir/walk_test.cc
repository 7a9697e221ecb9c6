// Slices, sorting, dead nodes, and copies of parts of graphs.
#include "compiler/ir/walk.h"

#include "tests/ir/support.h"

namespace halfnote {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::string_view kNested = R"(g (x, c) => (y, z) <float w = {1}> {
  [a] a = A (x)
  [b] b = B (w)
  [if] i = If (c) <
    else_branch = e () => (e2) { [e1] e1 = E (b) [e2] e2 = E (e1) },
    then_branch = t (p) => (t2) { [t1] t1 = T (p, w) [t2] t2 = If (c) <then_branch = u () => (a) { [u1] u1 = U (t1) }> }
  >
  [y] y = Y (i)
  [z] z = Z (x)
})";

NodeId node_named(const Graph& graph, std::string_view name) {
  for (NodeId node : graph.all_nodes()) {
    if (graph.node(node).name == name) return node;
  }
  return NodeId{};
}

TEST(Walk, CapturesAreWhatSubgraphsTakeFromOutside) {
  const Graph graph = graph_of(kNested);
  EXPECT_THAT(names(graph, captures(graph, node_named(graph, "if"))),
              ElementsAre("b", "w", "c", "a"));
  EXPECT_THAT(names(graph, captures(graph, node_named(graph, "t2"))), ElementsAre("t1", "a"));
  EXPECT_THAT(captures(graph, node_named(graph, "a")), IsEmpty());
  EXPECT_THAT(names(graph, reads(graph, node_named(graph, "if"))), ElementsAre("c", "b", "w", "a"));
}

TEST(Walk, BackwardSlice) {
  const Graph graph = graph_of(kNested);
  const auto slice = [&](const char* name) {
    const ValueId value = graph.find(name);
    return names(graph, backward_slice(graph, std::span(&value, 1)));
  };
  EXPECT_THAT(slice("z"), ElementsAre("z"));
  EXPECT_THAT(slice("y"), ElementsAre("a", "b", "if", "e1", "e2", "t1", "t2", "u1", "y"));
  EXPECT_THAT(slice("e1"), ElementsAre("b", "e1"));
  // A region input depends on the node that owns the region.
  EXPECT_THAT(slice("t1"), ElementsAre("a", "b", "if", "e1", "e2", "t1", "t2", "u1"));
  EXPECT_THAT(slice("x"), IsEmpty());
}

TEST(Walk, ForwardSlice) {
  const Graph graph = graph_of(kNested);
  const auto slice = [&](const char* name) {
    const ValueId value = graph.find(name);
    return names(graph, forward_slice(graph, std::span(&value, 1)));
  };
  EXPECT_THAT(slice("y"), IsEmpty());
  EXPECT_THAT(slice("e1"), ElementsAre("if", "e2", "t1", "t2", "u1", "y"));
  EXPECT_THAT(slice("x"), ElementsAre("a", "if", "t1", "t2", "u1", "y", "z"));
}

TEST(Walk, SortKeepsWhatStandsRight) {
  Graph graph = graph_of(kNested);
  EXPECT_FALSE(sort_region(graph, graph.main()));
  graph.move_before(node_named(graph, "a"), graph.end());
  graph.move_before(node_named(graph, "y"), graph.before(graph.first(graph.main())));
  EXPECT_THROW(verify(graph), Error);
  EXPECT_TRUE(sort_region(graph, graph.main()));
  EXPECT_THAT(names(graph, graph.nodes()), ElementsAre("b", "a", "if", "y", "z"));
  verify(graph);
}

TEST(Walk, SortNamesANodeOfACycle) {
  Graph graph = graph_of("g (x) => (c) { [n1] a = A (x) [n2] b = B (a) c = C (b) }");
  graph.set_input(node_named(graph, "n1"), 0, graph.find("b"));
  EXPECT_THAT(error_of([&] { sort_region(graph, graph.main()); }, ErrorCode::kModel),
              HasSubstr("node \"n1\" (A): the graph has a cycle"));
}

TEST(Walk, SortIsIterative) {
  Graph graph;
  ValueId value = graph.add_input(graph.main(), "x", floats({4}));
  for (int i = 0; i < 50000; ++i) value = add_op(graph, "A", {value}, "a");
  const auto nodes = graph.nodes();
  for (NodeId node : nodes) graph.move_before(node, graph.before(graph.first(graph.main())));
  EXPECT_TRUE(sort_region(graph, graph.main()));
  EXPECT_EQ(graph.nodes(), nodes);
}

TEST(Walk, DeadNodesGoIfTheyMay) {
  Graph graph = graph_of(R"(g (x, c) => (y) {
    a = A (x)
    b = Random (a)
    d = D (x)
    i = If (c) <then_branch = t () => (u) { u = U (d) v = V (d) }>
    y = If (c) <then_branch = t2 () => (w) { w = W (x) dead = V (w) }>
  })");
  const size_t count =
      erase_dead(graph, [](const Graph& g, NodeId node) { return g.node(node).op != "Random"; });
  // v and i, d, dead; u goes with i
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(print(graph), R"(g (x, c) => (y) {
   a = A (x)
   b = Random (a)
   y = If (c) <
      then_branch: graph = t2 () => (w) {
         w = W (x)
      }
   >
}
)");
  verify(graph);
}

TEST(Walk, UnusedInitializersGoButWeightsAndStatesStay) {
  Graph graph = graph_of(R"(g () => (y) <float a = {1}, float b = {2}, float w = {3},  # trainable
    float s = {4}> { y = Y (b) state counter s -> s })");
  EXPECT_EQ(erase_unused_initializers(graph), 1u);
  EXPECT_THAT(names(graph, graph.initializers()), ElementsAre("b", "w", "s"));
  verify(graph);
}

// --- copies --------------------------------------------------------------------------------------

TEST(Clone, AFunctionIsInlined) {
  const Graph body = parse_graph(R"(f (a, b) => (o, a) <float one = {1}> {
    [n] float o, "", float[2] p = Op <k: int = @k, gone: int = @gone, g = r (q) => (s) <float two = {2}> { s = S (q, a, one, two) }> (a, , b)  # role=loss precision=bf16 reason="r" origin="o" scale=1 meta={"m": "1"}
  })",
                                 "f");
  Graph graph = graph_of("main (float x, p) => (y) { [call] y = f (x) [n] o = N (p) }");
  const NodeId call = node_named(graph, "call");
  ValueMap values;
  values[body.inputs()[0]] = graph.find("x");
  values[body.inputs()[1]] = ValueId{};  // an operand that the call leaves out
  CloneOptions options;
  options.prefix = "call/";
  options.resolve = [](const AttributeReference& reference) -> std::optional<Attribute> {
    if (reference.name == "k") return Attribute(int64_t{7});
    return std::nullopt;
  };
  const auto outputs = clone_into(graph, graph.before(call), body, values, options);
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[1], graph.find("x"));
  graph.replace_uses(graph.find("y"), outputs[0]);
  graph.remove(call);
  verify(graph);
  EXPECT_EQ(print(graph), R"(main (float x, p) => (float "call/o") <
   float "call/one" = {1}
> {
   ["call/n"] float "call/o", "", float[2] "call/p" = Op (x, "", "") <
      g: graph = r ("call/q") => ("call/s") <
         float "call/two" = {2}
      > {
         "call/s" = S ("call/q", x, "call/one", "call/two")
      },
      k: int = 7
   >  # role=loss precision=bf16 reason="r" origin="o" scale=1 meta={"m": "1"}
   [n] o = N (p)
}
)");
  EXPECT_EQ(graph.value(graph.find("call/one")).tensor.bytes(),
            body.value(body.find("one")).tensor.bytes());
}

TEST(Clone, NodesAreRepeatedInTheirOwnGraph) {
  Graph graph = graph_of(R"(g (x) => (b) <float w = {1}> {  # doc=""
    [a] a = A (x, w)
    [b] b = B (a) <g = r () => (s) { s = S (a, x) }>
  })");
  ValueMap values;
  CloneOptions options;
  options.role = Role::kBackward;
  options.origin = "again";
  clone_nodes(graph, graph.end(), graph, graph.nodes(), values, options);
  verify(graph);
  EXPECT_EQ(print(graph), R"(g (x) => (b) <
   float w = {1}
> {
   [a] a = A (x, w)
   [b] b = B (a) <
      g: graph = r () => (s) {
         s = S (a, x)
      }
   >
   [a] a_1 = A (x, w)  # role=backward origin="again"
   [b] b_1 = B (a_1) <
      g: graph = r () => (s_1) {
         s_1 = S (a_1, x)  # role=backward origin="again"
      }
   >  # role=backward origin="again"
}
)");
}

TEST(Clone, AValueWithoutCounterpartIsABug) {
  const Graph body = graph_of("f (a) => (o) { o = Op (a) }");
  Graph graph;
  ValueMap values;
  EXPECT_THAT(error_of([&] { clone_into(graph, graph.end(), body, values); }, ErrorCode::kInternal),
              HasSubstr("expected an entry for \"a\""));
}

TEST(Clone, ARegionGetsANewOwner) {
  Graph graph = graph_of("g (x) => (y) { [i] y = If (x) <b = r (p) => (q) { q = Q (p, x) }> }");
  const RegionId body = graph.subgraphs(node_named(graph, "i"))[0];
  ValueMap values;
  const RegionId copy = clone_region(graph, graph.main(), graph, body, values);
  NodeSpec spec;
  spec.op = "If";
  spec.attributes.set("b", copy);
  const NodeId owner = graph.create(std::move(spec), 1, graph.end());
  EXPECT_EQ(graph.region_owner(copy), owner);
  verify(graph);
}

TEST(Clone, StatesAndTrainableFlags) {
  const Graph from = graph_of(R"(g () => (y) <float w = {1}  # trainable scale=1
    > { y = Y (w) state weight w -> w })");
  Graph to;
  ValueMap values;
  clone_into(to, to.end(), from, values);
  EXPECT_TRUE(to.states().empty());
  EXPECT_TRUE(to.value(to.find("w")).trainable);
  EXPECT_EQ(to.value(to.find("w")).scale_power, 1);
}

}  // namespace
}  // namespace halfnote
