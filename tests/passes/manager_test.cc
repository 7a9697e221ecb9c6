// What the manager finds out about a pass that says the wrong thing, in graphs that it reads whole
// and in large ones, of which it reads a sample.
#include "tests/passes/support.h"

namespace halfnote {
namespace {

constexpr int kSmall = 3, kLarge = 3000;

/// A chain of Relu: node i is named `n<i>`.
Model relu_chain(int length) {
  Model model;
  model.opsets[""] = kOpsetVersion;
  Graph& graph = model.graph;
  graph.name = "chain";
  ValueId last = graph.add_input(graph.main(), "x", ValueType::tensor(DType::kF32, {Dim(2)}));
  for (int i = 0; i < length; ++i) {
    const NodeId node = graph.create({.op = "Relu", .inputs = {last}}, 1, graph.end());
    graph.node(node).name = "n" + std::to_string(i);
    last = graph.output(node);
    graph.value(last).type = ValueType::tensor(DType::kF32, {Dim(2)});
  }
  graph.add_output(graph.main(), last);
  return model;
}

NodeId middle(const Graph& graph) { return NodeId{graph.node_capacity() / 2}; }

bool adds_a_node(Graph& graph, PassContext&) {
  graph.create({.op = "Neg", .inputs = {graph.inputs()[0]}}, 1, graph.end());
  return false;
}

bool removes_a_node(Graph& graph, PassContext&) {
  const NodeId node = middle(graph);
  graph.replace_uses(graph.output(node), graph.input(node, 0));
  graph.remove(node);
  return false;
}

bool makes_and_takes_away(Graph& graph, PassContext&) {
  const NodeId made = graph.create({.op = "Neg", .inputs = {graph.inputs()[0]}}, 1, graph.end());
  graph.remove(made);
  return false;
}

bool changes_all_names(Graph& graph, PassContext&) {
  for (NodeId node : graph.nodes()) graph.node(node).name += "'";
  return false;
}

bool breaks_the_order(Graph& graph, PassContext&) {
  graph.move_before(middle(graph), graph.before(graph.first(graph.main())));
  return true;
}

bool breaks_the_order_in_silence(Graph& graph, PassContext& context) {
  return !breaks_the_order(graph, context);
}

std::string error_after(GraphPass pass, int length) {
  Model model = relu_chain(length);
  PassRow row;
  row.name = "the-pass";
  row.on_graph = pass;
  const CompileOptions options;
  std::vector<Remark> remarks;
  PassContext context{options, {}, {}, remarks, {}};
  try {
    run_pipeline(model, context, std::span(&row, 1));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "none";
}

class Manager : public testing::TestWithParam<int> {};

TEST_P(Manager, FindsChangesThatWereNotSaid) {
  for (GraphPass pass : {adds_a_node, removes_a_node, changes_all_names}) {
    EXPECT_THAT(error_after(pass, GetParam()),
                testing::HasSubstr("changed the model but said it did not"));
  }
}

TEST_P(Manager, WhatIsMadeAndTakenAwayIsNoChange) {
  EXPECT_EQ(error_after(makes_and_takes_away, GetParam()), "none");
}

TEST_P(Manager, FindsBrokenGraphs) {
  EXPECT_THAT(error_after(breaks_the_order, GetParam()),
              testing::HasSubstr("before it is defined"));
}

TEST_P(Manager, FindsBrokenGraphsOfSilentPasses) {
  EXPECT_NE(error_after(breaks_the_order_in_silence, GetParam()), "none");
}

INSTANTIATE_TEST_SUITE_P(Sizes, Manager, testing::Values(kSmall, kLarge));

}  // namespace
}  // namespace halfnote
