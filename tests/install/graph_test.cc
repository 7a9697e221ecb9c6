// What a user's test of a compiled model looks like: the installed queries and matchers on graphs.
// The model is the one that the environment names, a CNN with softmax in its loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "compiler/ir/query.h"
#include "runtime/train/session.h"
#include "testing/graph_matchers.h"

namespace {

using namespace halfnote;            // NOLINT(google-build-using-namespace)
using namespace halfnote::matchers;  // NOLINT(google-build-using-namespace)

Model compiled() {
  CompileOptions options;
  options.policy.dtype = DType::kF16;
  options.train.loss = "cross_entropy";
  return compile_file(std::getenv("MODEL"), options).model;
}

TEST(InstalledMatchers, SayWhatACompilationDid) {
  const Model model = compiled();
  const Graph& step = model.training.front().graph;
  EXPECT_THAT(step, HasOp("Conv", testing::AtLeast(2)));
  EXPECT_THAT(step, RunsIn("Conv", DType::kF16));
  EXPECT_THAT(step, RunsIn("SoftmaxCrossEntropyLoss", DType::kF32));
  EXPECT_THAT(step, NoPathScalesTwice());
  const NodeId conv = find_nodes(step, "Conv").front();
  EXPECT_THAT(step, HasReason(step.node(conv).name, testing::HasSubstr("allow list")));
  const ValueId weight = before_casts(step, step.input(conv, 1));
  EXPECT_EQ(step.value(weight).kind, ValueKind::kInitializer);
  EXPECT_THAT(step, CastExactlyOnce(step.value(weight).name, DType::kF16));
}

TEST(InstalledQueries, FollowEdges) {
  const Model model = compiled();
  const Graph& graph = model.graph;
  const NodeId first = find_nodes(graph, "Conv").front();
  const NodeId last = producer(graph, graph.outputs().front());
  EXPECT_TRUE(exists_path(graph, first, last));
  EXPECT_FALSE(exists_path(graph, last, first));
  EXPECT_FALSE(find_scale_fault(model.training.front().graph).has_value());
}

}  // namespace
