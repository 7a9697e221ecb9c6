// The builder: arithmetic, constants, broadcasting backwards.
#include "compiler/ir/builder.h"

#include "tests/ir/support.h"

namespace halfnote {
namespace {

using testing::HasSubstr;

/// Types for the few ops that the builder itself makes: enough to see that it infers as it goes.
void infer(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const ValueId first = graph.input(id, 0);
  ValueType type = first.valid() ? graph.value(first).type : ValueType();
  if (node.op == "Cast") type.dtype = static_cast<DType>(node.attributes.get_int("to", 0));
  if (node.op == "Shape") type = ValueType::tensor(DType::kI64, {Dim(type.rank())});
  if (node.op == "ReduceSum") {
    const auto axes = graph.constant(graph.input(id, 1))->to_ints();
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      if (node.attributes.get_int("keepdims", 1) != 0) {
        (*type.shape)[static_cast<size_t>(*axis)] = Dim(1);
      } else {
        type.shape->erase(type.shape->begin() + *axis);
      }
    }
  }
  for (ValueId output : graph.outputs(id)) graph.value(output).type = type;
}

struct Fixture : testing::Test {
  Graph graph;
  Builder b{graph, graph.end(), infer};

  Expr input(const char* name, ValueType type) {
    return b.value(graph.add_input(graph.main(), name, std::move(type)));
  }
  std::string text() { return print(graph); }
};

using BuilderTest = Fixture;

TEST_F(BuilderTest, ArithmeticTakesTheTypeOfTheOtherSide) {
  const Expr y = input("y", ValueType::tensor(DType::kF16, {Dim(2)}));
  const Expr dx = y * (1.0 - y) + 0.1;
  graph.set_outputs(graph.main(), {(-dx / 2.0).id});
  verify(graph, {.typed = true});
  EXPECT_EQ(text(), R"("" (float16[2] y) => (float16[2] Div) <
   float16 const = {1.0},
   float16 const_1 = {0.1},
   float16 const_2 = {2.0}
> {
   [Sub] float16 Sub = Sub (const, y)
   [Mul] float16[2] Mul = Mul (y, Sub)
   [Add] float16[2] Add = Add (Mul, const_1)
   [Neg] float16[2] Neg = Neg (Add)
   [Div] float16[2] Div = Div (Neg, const_2)
}
)");
}

TEST_F(BuilderTest, NodesGetRoleOriginPrefixAndPlace) {
  const Expr x = input("x", floats({4}));
  const Expr last = b.op("Last", {x});
  b.set_role(Role::kBackward);
  b.set_origin("conv1");
  b.set_prefix("grad/");
  b.set_insert_point(graph.before(b.last()));
  const auto both = b.ops("Split", {x, b.none()}, 2, {{"axis", int64_t{1}}}, "my.domain");
  EXPECT_EQ(b.last(), graph.value(both[1].id).producer);
  const Node& node = graph.node(b.last());
  EXPECT_EQ(node.role, Role::kBackward);
  EXPECT_EQ(node.origin, "conv1");
  EXPECT_EQ(node.name, "grad/Split");
  EXPECT_EQ(graph.value(both[1].id).name, "grad/Split_1");
  EXPECT_EQ(node.domain, "my.domain");
  EXPECT_TRUE(graph.is_before(b.last(), graph.value(last.id).producer));
}

TEST_F(BuilderTest, CastsOnlyWhereTheTypeDiffers) {
  const Expr x = input("x", ValueType::tensor(DType::kBF16, {Dim(2)}));
  const Expr wide = b.to_math(x);
  EXPECT_EQ(wide.dtype(), DType::kF32);
  EXPECT_EQ(b.to_math(wide).id, wide.id);
  const Expr d = input("d", ValueType::tensor(DType::kF64, {Dim(2)}));
  EXPECT_EQ(b.to_math(d).id, d.id);
  EXPECT_EQ(graph.node_count(), 1u);
}

TEST_F(BuilderTest, ShapesAreConstantWhereTheyAreKnown) {
  const Expr known = b.shape_of(input("k", floats({2, 3})));
  EXPECT_EQ(graph.constant(known.id)->to_ints(), (std::vector<int64_t>{2, 3}));
  const Expr open = b.shape_of(input("o", floats({Dim::named("N"), 3})));
  EXPECT_EQ(graph.node(graph.value(open.id).producer).op, "Shape");
}

TEST_F(BuilderTest, SumToUndoesABroadcast) {
  const Dim n = Dim::named("N");
  struct Case {
    SymbolicShape from, to;
    int reductions;
  };
  const Case cases[] = {
      {{n, Dim(3)}, {n, Dim(3)}, 0},
      {{n, Dim(3)}, {Dim(3)}, 1},
      {{n, Dim(3)}, {Dim(1), Dim(3)}, 1},
      {{Dim(2), n, Dim(3)}, {Dim(1), Dim(3)}, 2},
      {{n, Dim(3)}, {}, 1},
      {{Dim(), Dim(3)}, {Dim(4), Dim(3)}, 0},  // a known dim above 1 was not broadcast
  };
  for (const Case& c : cases) {
    Graph g;
    Builder builder(g, g.end(), infer);
    const Expr x =
        builder.value(g.add_input(g.main(), "x", ValueType::tensor(DType::kF32, c.from)));
    const Expr t = builder.value(g.add_input(g.main(), "t", ValueType::tensor(DType::kF32, c.to)));
    const Expr sum = builder.sum_to(x, t);
    EXPECT_EQ(g.node_count(), static_cast<uint32_t>(c.reductions)) << print(g);
    EXPECT_EQ(sum.rank(), t.rank()) << print(g);
    verify(g);
  }
}

TEST_F(BuilderTest, SumToAsksTheSizesWhereSymbolsLeaveItOpen) {
  const Expr x = input("x", floats({Dim(4), Dim::named("M"), Dim(8)}));
  const Expr n = input("n", floats({Dim::named("N"), Dim(8)}));
  const Expr sum = b.sum_to(x, n);
  EXPECT_EQ(sum.type(), n.type());
  const NodeId slice = graph.value(sum.id).producer;
  EXPECT_EQ(graph.node(slice).op, "Slice");
  EXPECT_EQ(graph.node(graph.value(graph.input(slice, 0)).producer).op, "Where");
  EXPECT_EQ(graph.node(graph.value(graph.input(slice, 2)).producer).op, "Shape");
  verify(graph);
}

TEST_F(BuilderTest, SumToRefusesALowerRank) {
  const Expr x = input("x", floats({8}));
  const Expr matrix = input("m", floats({2, 8}));
  EXPECT_THAT(error_of([&] { b.sum_to(x, matrix); }, ErrorCode::kInternal),
              HasSubstr("a gradient has a lower rank than \"m\""));
}

TEST_F(BuilderTest, AnUnknownRankIsRefusedWithAHint) {
  const Expr x = input("x", ValueType::tensor(DType::kF32));
  EXPECT_THAT(error_of([&] { (void)x.rank(); }, ErrorCode::kUnsupported),
              HasSubstr("the rank of value \"x\" is unknown"));
  EXPECT_FALSE(b.none().valid());
}

TEST_F(BuilderTest, WithoutInferenceResultsStayUntyped) {
  Builder plain(graph, graph.end(), nullptr);
  const Expr y = plain.op("Neg", {input("x", floats({2}))});
  EXPECT_EQ(y.type().kind, TypeKind::kUnknown);
  verify(graph);
}

TEST_F(BuilderTest, ReduceReshapeTranspose) {
  const Expr x = input("x", floats({2, 3}));
  EXPECT_EQ(b.reduce_sum(x, {}, true).id, x.id);
  b.reshape(x, b.ints({3, 2}));
  b.transpose(x, {1, 0});
  const auto nodes = graph.nodes();
  EXPECT_EQ(graph.node(nodes[0]).op, "Reshape");
  EXPECT_EQ(graph.node(nodes[1]).attributes.get_ints("perm"), (std::vector<int64_t>{1, 0}));
  verify(graph);
}

}  // namespace
}  // namespace halfnote
