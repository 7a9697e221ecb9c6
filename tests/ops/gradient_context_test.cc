// How gradient rules change their forward node.
#include <gtest/gtest.h>

#include "compiler/ir/model.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/infer_shapes.h"
#include "tests/ops/body_harness.h"

namespace halfnote::test {
namespace {

/// X -> Relu -> BatchNormalization in training -> Relu, running mean and variance are states.
class TrainedNormalization : public ::testing::Test {
 protected:
  TrainedNormalization() : b_(graph_, graph_.end(), infer_node) {
    const ValueType type = ValueType::tensor(DType::kF32, {Dim::named("N"), 3});
    const Expr x = b_.value(graph_.add_input(graph_.main(), "x", type));
    std::vector<Expr> operands = {b_.op("Relu", {x})};
    for (const char* name : {"scale", "bias", "mean", "var"}) {
      const Tensor tensor = random_tensor(DType::kF32, {3}, operands.size(), 0.5, 1);
      operands.push_back(b_.value(graph_.add_initializer(name, tensor)));
    }
    const auto results = b_.ops("BatchNormalization", operands, 3, {{"training_mode", int64_t{1}}});
    node_ = b_.last();
    graph_.node(node_).name = "bn";
    graph_.node(node_).metadata = {{"key", "value"}};
    y_ = graph_.value(results[0].id).name;
    graph_.add_state(operands[3].id, results[1].id, StateKind::kStatistic);
    graph_.add_state(operands[4].id, results[2].id, StateKind::kStatistic);
    graph_.add_output(graph_.main(), b_.op("Relu", {results[0]}).id);
    graph_.add_output(graph_.main(), results[0].id);
  }

  GradientContext context() {
    GradientContext rule{b_, node_, {}, {}, {}, {}, infer_node};
    for (ValueId input : graph_.inputs(node_)) rule.inputs.push_back(b_.value(input));
    for (ValueId output : graph_.outputs(node_)) rule.outputs.push_back(b_.value(output));
    rule.grads.assign(rule.outputs.size(), b_.none());
    rule.needed.assign(rule.inputs.size(), true);
    return rule;
  }

  Graph graph_;
  Builder b_;
  NodeId node_;
  std::string y_;
};

TEST_F(TrainedNormalization, ReplacementTakesPlaceNameAndUses) {
  GradientContext rule = context();
  const NodeId after = graph_.next(node_);
  const uint32_t nodes = graph_.node_count();
  const auto outputs =
      rule.replace_forward("BatchNormalization", kHalfnoteDomain, {}, rule.inputs, 5);
  ASSERT_EQ(outputs.size(), 5u);
  EXPECT_EQ(graph_.node_count(), nodes);
  EXPECT_EQ(graph_.next(rule.node), after);
  EXPECT_EQ(graph_.node(rule.node).name, "bn");
  EXPECT_EQ(graph_.node(rule.node).metadata.size(), 1u);
  EXPECT_EQ(graph_.value(outputs[0].id).name, y_);
  EXPECT_EQ(graph_.outputs()[1], outputs[0].id);
  EXPECT_EQ(graph_.input(after, 0), outputs[0].id);
  EXPECT_EQ(graph_.states()[0].next, outputs[1].id);
  EXPECT_EQ(graph_.states()[1].next, outputs[2].id);
  EXPECT_EQ(to_string(outputs[4].type()), "float[3]");
}

TEST_F(TrainedNormalization, RuleReadsTheSavedStatistics) {
  GradientContext rule = context();
  rule.grads[0] = b_.value(graph_.add_input(graph_.main(), "dy", rule.outputs[0].type()));
  const auto grads = find_operator("", "BatchNormalization")->gradient(rule);
  ASSERT_EQ(grads.size(), 5u);
  EXPECT_TRUE(grads[0].valid() && grads[1].valid() && grads[2].valid());
  EXPECT_FALSE(grads[3].valid() || grads[4].valid());
  const NodeId made = graph_.value(grads[0].id).producer;
  EXPECT_EQ(graph_.node(made).op, "BatchNormalizationGrad");
  EXPECT_EQ(graph_.input(made, 3), rule.outputs[3].id);
  EXPECT_EQ(graph_.input(made, 4), rule.outputs[4].id);
}

TEST(GradientContext, RequestedOutputIsMadeOnce) {
  Graph graph;
  Builder b(graph, graph.end(), infer_node);
  const auto type = ValueType::tensor(DType::kF32, {Dim::named("N"), 4});
  const Expr x = b.value(graph.add_input(graph.main(), "x", type));
  const Expr scale = b.value(graph.add_initializer("s", Tensor::full(DType::kF32, {4}, 1)));
  const Expr y = b.op("LayerNormalization", {x, scale});
  GradientContext rule{b, b.last(), {x, scale}, {y}, {b.none()}, {true, true}, infer_node};
  const Expr inv_std = rule.request_output(2);
  EXPECT_EQ(to_string(inv_std.type()), "float[N,1]");
  EXPECT_EQ(rule.request_output(2).id, inv_std.id);
  EXPECT_FALSE(graph.output(rule.node, 1).valid());
  EXPECT_TRUE(rule.request_output(1).valid());
  EXPECT_EQ(graph.outputs(rule.node).size(), 3u);
  EXPECT_EQ(rule.grads.size(), 3u);
}

}  // namespace
}  // namespace halfnote::test
