#include "passes/canonical/infer_shapes.h"

#include "compiler/ir/builder.h"
#include "compiler/onnx/schema.h"
#include "tests/passes/support.h"

namespace halfnote {
namespace {

Graph graph_with(const char* op) {
  Graph graph;
  Builder b(graph, graph.end(), {});
  const Expr x = b.value(
      graph.add_input(graph.main(), "x", ValueType::tensor(DType::kF32, symbolic(Shape{2, 3}))));
  graph.add_output(graph.main(), b.op(op, {x}).id);
  return graph;
}

// Models of younger op-sets have them until they are lifted.
TEST(InferShapes, AnOpYoungerThanOursIsInferredByItsOwnOpSet) {
  Graph graph = graph_with("Swish");
  ASSERT_FALSE(has_schema("", "Swish", kOpsetVersion)) << "no longer younger: take another op";
  EXPECT_TRUE(infer_graph(graph));
  EXPECT_EQ(graph.value(graph.outputs()[0]).type,
            ValueType::tensor(DType::kF32, symbolic(Shape{2, 3})));
}

TEST(InferShapes, AnOpOfNoOpSetIsRefused) {
  Graph graph = graph_with("NoSuchOp");
  EXPECT_THROW(infer_graph(graph), Error);
}

TEST(InferShapes, AModelOfOpSet23MustNotHaveAYoungerOp) {
  Model model = test::model_of("t (float[2] x) => (float[2] y) { y = Swish (x) }");
  try {
    test::run_until(model, {}, "lift-opset");
    ADD_FAILURE() << "lifted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("Swish"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace halfnote
