// The query API and the GoogleTest matchers on it.
#include "compiler/ir/query.h"

#include "testing/graph_matchers.h"
#include "tests/ir/support.h"

namespace halfnote {
namespace {

using namespace matchers;
using testing::AllOf;
using testing::AtLeast;
using testing::AtMost;
using testing::ElementsAre;
using testing::Exactly;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::string_view kMixed = R"(g (float[N,4] x, bool c) => (float[N,4] p, float[N,4] s) <
    float[4,4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}
> {
  [cast_x] bfloat16[N,4] x16 = Cast <to = 16> (x)  # reason="inserted for \"mm\""
  [cast_w] bfloat16[4,4] w16 = Cast <to = 16> (w)
  [mm] bfloat16[N,4] h = MatMul (x16, w16)  # precision=bf16 reason="allow list: MatMul"
  [mm2] bfloat16[N,4] h2 = MatMul (h, w16)  # precision=bf16 reason="allow list: MatMul"
  [back] float[N,4] h32 = Cast <to = 1> (h2)
  [soft] float[N,4] p = Softmax (h32)  # precision=f32 reason="fp32: softmax math"
  [drop] bfloat16[N,4] d = ai.halfnote.Dropout <ratio = 0.5> (h)
  [branch] float[N,4] s = If (c) <then_branch = t () => (float[N,4] t1) { [t1] float[N,4] t1 = Neg (h32) }>
  [grad] bfloat16[N,4] dh = SoftmaxGrad (h2, h2)  # role=backward origin="soft"
})";

struct Query : testing::Test {
  Graph graph = graph_of(kMixed);
  ValueId value(const char* name) { return graph.find(name); }
  std::vector<std::string> found(const NodeQuery& query) {
    return names(graph, find_nodes(graph, query));
  }
};

TEST_F(Query, FindsByEveryCondition) {
  EXPECT_THAT(found({.op = "MatMul"}), ElementsAre("mm", "mm2"));
  EXPECT_THAT(found({.op = "ai.halfnote.Dropout"}), ElementsAre("drop"));
  EXPECT_THAT(found({.op = "Dropout"}), IsEmpty());
  EXPECT_THAT(found({.op = "Dropout", .domain = "ai.halfnote"}), ElementsAre("drop"));
  EXPECT_THAT(found({.domain = "ai.halfnote"}), ElementsAre("drop"));
  EXPECT_THAT(found({.name = "mm.*"}), ElementsAre("mm", "mm2"));
  EXPECT_THAT(found({.name = "m"}), IsEmpty());
  EXPECT_THAT(found({.name = "t1"}), ElementsAre("t1"));
  EXPECT_THAT(found({.reason = "allow list"}), ElementsAre("mm", "mm2"));
  EXPECT_THAT(found({.role = Role::kBackward}), ElementsAre("grad"));
  EXPECT_THAT(found({.origin = "soft"}), ElementsAre("grad"));
  EXPECT_THAT(found({.op = "Cast", .reason = "inserted"}), ElementsAre("cast_x"));
  EXPECT_EQ(found({}).size(), 10u);
  EXPECT_THAT(error_of([&] { found({.name = "("}); }, ErrorCode::kUsage),
              HasSubstr("not a pattern for node names"));
}

TEST_F(Query, FindsByExactName) {
  EXPECT_EQ(graph.node(find_node(graph, "soft")).op, "Softmax");
  EXPECT_FALSE(find_node(graph, "sof").valid());
  EXPECT_EQ(op_name(graph.node(find_node(graph, "drop"))), "ai.halfnote.Dropout");
}

TEST_F(Query, ProducersAndUsersThroughCasts) {
  EXPECT_FALSE(producer(graph, value("x")).valid());
  EXPECT_FALSE(producer(graph, ValueId{}).valid());
  EXPECT_EQ(graph.node(producer(graph, value("h32"))).name, "back");
  EXPECT_EQ(graph.node(producer_through_casts(graph, value("h32"))).name, "mm2");
  EXPECT_EQ(before_casts(graph, value("w16")), value("w"));
  EXPECT_THAT(names(graph, users_through_casts(graph, value("w"))), ElementsAre("mm", "mm2"));
  EXPECT_THAT(names(graph, users_through_casts(graph, value("h2"))),
              ElementsAre("grad", "soft", "t1"));
}

TEST_F(Query, CountsCasts) {
  EXPECT_EQ(casts_of(graph, value("w"), DType::kBF16).size(), 1u);
  EXPECT_EQ(casts_of(graph, value("w"), DType::kF16).size(), 0u);
  EXPECT_EQ(casts_of(graph, value("h"), DType::kBF16).size(), 0u);
}

TEST_F(Query, PathsGoThroughSubgraphs) {
  EXPECT_TRUE(exists_path(graph, value("x"), value("p")));
  EXPECT_TRUE(exists_path(graph, value("x"), value("x")));
  EXPECT_FALSE(exists_path(graph, value("p"), value("x")));
  EXPECT_FALSE(exists_path(graph, value("x"), value("w16")));
  EXPECT_THAT(names(graph, *find_path(graph, value("w"), value("p"))),
              ElementsAre("cast_w", "mm2", "back", "soft"));
  EXPECT_THAT(names(graph, *find_path(graph, value("h32"), value("s"))),
              ElementsAre("t1", "branch"));
  EXPECT_TRUE(exists_path(graph, find_node(graph, "mm"), find_node(graph, "branch")));
  EXPECT_FALSE(exists_path(graph, find_node(graph, "soft"), find_node(graph, "branch")));
}

TEST_F(Query, InputsOfRegionsDependOnTheirOwner) {
  const Graph loop =
      graph_of("g (a, b) => (y) { y = Loop (a) <body = l (p) => (q) { q = Q (p) }> }");
  EXPECT_TRUE(exists_path(loop, loop.find("a"), loop.find("p")));
  EXPECT_FALSE(exists_path(loop, loop.find("b"), loop.find("p")));
}

TEST(ComputeDtype, IsWhatStandsInTheGraph) {
  const Graph graph = graph_of(R"(g (float16[4] h, float[4] f, double[4] d, int64[4] i) => () {
    [sixteen] a = Softmax (h)  # precision=f32
    [widest] b = Op (h, f, i)
    [double] e = Op (d, f)
    [constant] bfloat16[2] k = Constant <value_float = 1.0> ()
    [integers] int64[4] l = Add (i, i)
    [layer] m = LayerNormalization (h, h)
    [stash] n = LayerNormalization <stash_type = 16> (h, h)
    [other] o = my.LayerNormalization (h, h)
  })");
  const auto dtype = [&](const char* name) { return compute_dtype(graph, find_node(graph, name)); };
  EXPECT_EQ(dtype("sixteen"), DType::kF16);
  EXPECT_EQ(dtype("widest"), DType::kF32);
  EXPECT_EQ(dtype("double"), DType::kF64);
  EXPECT_EQ(dtype("constant"), DType::kBF16);
  EXPECT_EQ(dtype("integers"), DType::kUndefined);
  EXPECT_EQ(dtype("layer"), DType::kF32);
  EXPECT_EQ(dtype("stash"), DType::kBF16);
  EXPECT_EQ(dtype("other"), DType::kF16);
}

TEST_F(Query, RunsIn) {
  EXPECT_TRUE(runs_in(graph, "Softmax", DType::kF32));
  EXPECT_TRUE(runs_in(graph, "MatMul", DType::kBF16));
  EXPECT_FALSE(runs_in(graph, "MatMul", DType::kF32));
  EXPECT_FALSE(runs_in(graph, "Conv", DType::kF32));
}

// --- the loss scale ------------------------------------------------------------------------------

struct ScaleCase {
  const char* title;
  const char* nodes;
  const char* fault;  // nullptr: sound
};

void PrintTo(const ScaleCase& c, std::ostream* os) { *os << c.title; }

class Scales : public testing::TestWithParam<ScaleCase> {};

TEST_P(Scales, AreFollowed) {
  const Graph graph = graph_of(std::string(R"(g (float l, float[4] x) => () <
    float loss_scale = {65536},
    float[4] sum = {0, 0, 0, 0},  # scale=1
    float two = {2}
  > {)") + GetParam().nodes + "\n state accumulator sum -> sum }");
  const auto fault = find_scale_fault(graph);
  if (GetParam().fault == nullptr) {
    EXPECT_FALSE(fault.has_value()) << fault->text;
    EXPECT_THAT(graph, NoPathScalesTwice());
    return;
  }
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->text, GetParam().fault);
  EXPECT_THAT(graph, Not(NoPathScalesTwice()));
}

INSTANTIATE_TEST_SUITE_P(
    Query, Scales,
    testing::Values(
        ScaleCase{"scale, backward, unscale", R"(
          dy = LossGrad (loss_scale, x)
          dw = Grad (dy, x)
          inverse = Reciprocal (loss_scale)
          inverse16 = Cast <to = 10> (inverse)
          g = Mul (dw, inverse16)
          w = AdamW (x, g))",
                  nullptr},
        ScaleCase{"unscale by division",
                  "a = Mul (l, loss_scale) b = Grad (a) c = Div (b, loss_scale)", nullptr},
        ScaleCase{"the scale moves", "a = Mul (loss_scale, two) b = Div (two, a) c = Mul (a, b)",
                  nullptr},
        ScaleCase{"what is asked of a gradient carries no scale", R"(
          a = Mul (l, loss_scale)
          bool f = AllFinite (a)
          float b = Where (f, x, l)
          c = Mul (b, loss_scale))",
                  nullptr},
        ScaleCase{"accumulated gradients", R"(
          a = Mul (l, loss_scale)
          b = Add (sum, a)
          i = Reciprocal (loss_scale)
          c = Mul (i, b))",
                  nullptr},
        ScaleCase{"scaled twice",
                  "[m1] a = Mul (l, loss_scale) [n] b = Neg (a) [m2] c = Mul (loss_scale, b)",
                  "value \"c\" is scaled more than once (S^2), by way of Mul \"m1\" Neg \"n\" Mul "
                  "\"m2\""},
        ScaleCase{"scaled twice through a cast of S", R"(
          s = Cast <to = 16> (loss_scale)
          r = Reshape (s, x)
          [m1] a = Mul (l, r)
          [m2] c = Mul (a, s))",
                  "value \"c\" is scaled more than once (S^2), by way of Mul \"m1\" Mul \"m2\""},
        ScaleCase{"unscaled twice", R"(
          i = Reciprocal (loss_scale)
          [m] a = Mul (l, loss_scale)
          [u1] b = Mul (a, i)
          [u2] c = Mul (b, i))",
                  "value \"c\" is unscaled once too often (S^-1), by way of Mul \"m\" Mul \"u1\" "
                  "Mul \"u2\""},
        ScaleCase{"unscaled without scale", "[u] a = Div (x, loss_scale)",
                  "value \"a\" is unscaled once too often (S^-1), by way of Div \"u\""},
        ScaleCase{"accumulated and scaled again", "[m] a = Mul (sum, loss_scale)",
                  "value \"a\" is scaled more than once (S^2), by way of Mul \"m\""},
        ScaleCase{"as the passes noted it", "[p] a = MatMul (x, x) # scale=2\n",
                  "value \"a\" is scaled more than once (S^2), by way of MatMul \"p\""}));

TEST(Scales, OtherNamesOfTheScale) {
  const Graph graph = graph_of("g (float s, x) => (b) { a = Mul (x, s) b = Mul (a, s) }");
  EXPECT_THAT(graph, NoPathScalesTwice());
  EXPECT_THAT(graph, Not(NoPathScalesTwice("s")));
}

// --- matchers ------------------------------------------------------------------------------------

using Matchers = Query;

template <class Matcher>
std::string explain(const Graph& graph, const Matcher& matcher) {
  testing::StringMatchResultListener listener;
  const testing::Matcher<const Graph&> erased = matcher;
  erased.MatchAndExplain(graph, &listener);
  return testing::DescribeMatcher<const Graph&>(erased) + " | " + listener.str();
}

TEST_F(Matchers, Match) {
  EXPECT_THAT(graph, HasOp("Softmax"));
  EXPECT_THAT(graph, HasOp("MatMul", 2));
  EXPECT_THAT(graph, HasOp("MatMul", Ge(1)));
  EXPECT_THAT(graph, HasOp("MatMul", AtLeast(2)));
  EXPECT_THAT(graph, HasOp("MatMul", Exactly(2)));
  EXPECT_THAT(graph, HasOp("Conv", 0));
  EXPECT_THAT(graph, Not(HasOp("Conv")));
  EXPECT_THAT(graph, Not(HasOp("MatMul", AtMost(1))));
  EXPECT_THAT(graph, RunsIn("Softmax", DType::kF32));
  EXPECT_THAT(graph, Not(RunsIn("Softmax", DType::kBF16)));
  EXPECT_THAT(graph, CastExactlyOnce("w", DType::kBF16));
  EXPECT_THAT(graph, Not(CastExactlyOnce("h", DType::kF32)));
  EXPECT_THAT(graph, CastTimes("h", DType::kF32, 0));
  EXPECT_THAT(graph, HasReason("mm", HasSubstr("allow list")));
  EXPECT_THAT(graph, HasReason("h", "allow list: MatMul"));
  EXPECT_THAT(graph, Not(HasReason("nobody", HasSubstr(""))));
  EXPECT_THAT(graph, HasPath("x", "p"));
  EXPECT_THAT(graph, Not(HasPath("p", "x")));
  EXPECT_THAT(graph, AllOf(HasOp("Cast", 3), NoPathScalesTwice()));
}

TEST_F(Matchers, SayWhatIsWrong) {
  EXPECT_EQ(explain(graph, HasOp("MatMul", AtLeast(3))),
            "has a number of MatMul nodes that is at least 3 times | which has 2: node \"mm\" "
            "(MatMul), node \"mm2\" (MatMul)");
  EXPECT_EQ(explain(graph, HasOp("Conv", 1)),
            "has a number of Conv nodes that is equal to 1 | which has 0: none");
  EXPECT_EQ(
      explain(graph, RunsIn("MatMul", DType::kF32)),
      "runs every MatMul, at least one, in f32 | where node \"mm\" (MatMul) runs in bf16 (reason: "
      "allow list: MatMul)");
  EXPECT_EQ(explain(graph, RunsIn("Conv", DType::kF32)),
            "runs every Conv, at least one, in f32 | which has no Conv");
  EXPECT_EQ(explain(graph, CastExactlyOnce("h2", DType::kF16)),
            "casts value \"h2\" to f16 exactly 1 time | where it is cast 0 times: none");
  EXPECT_EQ(explain(graph, CastExactlyOnce("nothing", DType::kF16)),
            "casts value \"nothing\" to f16 exactly 1 time | which has no value \"nothing\"");
  EXPECT_EQ(explain(graph, HasReason("soft", HasSubstr("allow"))),
            "has for the precision of node \"soft\" a reason that has substring \"allow\" | where "
            "its reason "
            "is \"fp32: softmax math\", its precision f32");
  EXPECT_EQ(
      explain(graph, HasPath("x", "p")),
      "has a path from value \"x\" to value \"p\" | by way of node \"cast_x\" (Cast), node \"mm\" "
      "(MatMul), node \"mm2\" (MatMul), node \"back\" (Cast), node \"soft\" (Softmax)");
  EXPECT_EQ(explain(graph, HasPath("x", "q")),
            "has a path from value \"x\" to value \"q\" | which has no value \"q\"");
}

TEST_F(Matchers, ShowTheGraphAsText) {
  const std::string shown = testing::PrintToString(graph);
  EXPECT_THAT(shown, HasSubstr("the graph\ng (float[N,4] x, bool c)"));
  Model model;
  model.graph.add_initializer("w", Tensor(DType::kF32, {17}));
  EXPECT_THAT(testing::PrintToString(model), HasSubstr("float[17] w = {...}"));
}

}  // namespace
}  // namespace halfnote
