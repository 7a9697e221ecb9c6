// Passes that follow values through a graph look at each node once, and do not go deeper with each:
// a way of 100,000 nodes is no different from one of ten.
#include <string>

#include "compiler/ir/query.h"
#include "tests/passes/support.h"

namespace halfnote::test {
namespace {

TEST(LongWays, KeepPaddedClasses) {
  constexpr int kLength = 100000;
  std::string text =
      "main (float[8,104] p, int64[8] t) => (float loss, float[8,104] y) <\n"
      "   int64[1] zero = {0}, int64[1] end = {100}, int64[1] last = {-1}, float one = {1},\n"
      "   int64[4] more = {0, 0, 0, 4}\n> {\n"
      "   float[8,100] s = Slice (p, zero, end, last)\n"
      "   float loss, float[8,100] d = ai.halfnote.SoftmaxCrossEntropyLossWithGradient (s, t, "
      "one)\n";
  std::string before = "d";
  for (int i = 0; i < kLength; ++i) {
    const std::string name = "c" + std::to_string(i);
    text += "   float[8,100] " + name + " = Cast <to: int = 1> (" + before + ")\n";
    before = name;
  }
  text += "   float[8,104] wide = Pad (" + before + ", more)\n   float[8,104] y = Neg (wide)\n}\n";
  Model model = model_of(text);
  EXPECT_TRUE(run_rows(model, {}, {row_of("keep-padded-classes")}).changed);
  const Graph& graph = model.graph;
  const NodeId neg = producer(graph, graph.outputs()[1]);
  EXPECT_EQ(graph.node(producer(graph, graph.input(neg, 0))).op, "Cast");
  EXPECT_EQ(known_shape(graph, graph.find("d")), (Shape{8, 104}));
}

}  // namespace
}  // namespace halfnote::test
