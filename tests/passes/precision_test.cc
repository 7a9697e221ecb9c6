// The decisions of assign_precision and what insert_casts makes of them, asked of the graph as a
// user would ask: which op runs in what, how often a value is cast, and which reason stands there.
// Policy rules, legality, constants that do not fit, and FP32 as the policy that changes nothing.
#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "support.h"
#include "testing/graph_matchers.h"

namespace halfnote::test {
namespace {

using namespace halfnote::matchers;
using testing::HasSubstr;

std::string numbers(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string((i * 7 % 11 - 5) / 8.0);
  }
  return text;
}

/// Two products that share a weight, an activation between them, a softmax behind them.
std::string net() {
  return "main (float[8,16] x) => (float[8,16] p) <\n   float[16,16] w = {" + numbers(256) + R"(}
> {
   a = MatMul (x, w)
   r = Relu (a)
   m = MatMul (r, w)
   p = Softmax (m)
}
)";
}

CompileOptions inference_for(DType dtype) {
  CompileOptions options;
  options.policy.dtype = dtype;
  options.inference_only = true;
  return options;
}

CompileOptions training_for(DType dtype) {
  CompileOptions options;
  options.policy.dtype = dtype;
  options.train.loss = "cross_entropy";
  options.train.optimizer.kind = "sgd";
  return options;
}

Graph compiled(const std::string& text, const CompileOptions& options) {
  Model model = model_of(text);
  run_all(model, options);
  return std::move(model.graph);
}

Graph compiled_step(const std::string& text, const CompileOptions& options) {
  Model model = model_of(text);
  run_all(model, options);
  return std::move(model.training.front().graph);
}

class InBothTypes : public testing::TestWithParam<DType> {};

TEST_P(InBothTypes, ProductsRunInSixteenBitsSoftmaxInF32) {
  const Graph graph = compiled(net(), inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("MatMul", GetParam()));
  EXPECT_THAT(graph, RunsIn("Relu", GetParam()));
  EXPECT_THAT(graph, RunsIn("Softmax", DType::kF32));
  EXPECT_THAT(graph, HasReason("a", HasSubstr("allow list: MatMul")));
  EXPECT_THAT(graph, HasReason("r", HasSubstr("between 16-bit nodes")));
  EXPECT_THAT(graph, HasReason("p", HasSubstr("fp32 list: Softmax")));
}

TEST_P(InBothTypes, EachValueIsCastOnce) {
  const Graph graph = compiled(net(), inference_for(GetParam()));
  EXPECT_THAT(graph, CastExactlyOnce("x", GetParam()));
  EXPECT_THAT(graph, CastTimes("a", DType::kF32, 0));
  EXPECT_THAT(graph, CastTimes("r", DType::kF32, 0));
  EXPECT_THAT(graph, CastExactlyOnce("m", DType::kF32));
  EXPECT_THAT(graph, HasOp("Cast", testing::Le(3)));
}

TEST_P(InBothTypes, AWeightOfATrainingStepIsCastOnce) {
  const Graph step = compiled_step(net(), training_for(GetParam()));
  EXPECT_THAT(step, CastExactlyOnce("w", GetParam()));
  EXPECT_THAT(step, CastExactlyOnce("x", GetParam()));
  EXPECT_EQ(step.value(step.find("w")).type.dtype, DType::kF32) << "master weights are f32";
}

TEST_P(InBothTypes, TheLossAndTheOptimizerAreF32) {
  const Graph step = compiled_step(net(), training_for(GetParam()));
  EXPECT_THAT(step, RunsIn("SoftmaxCrossEntropyLoss", DType::kF32));
  EXPECT_THAT(step, RunsIn("ai.halfnote.SGD", DType::kF32));
  EXPECT_THAT(step, NoPathScalesTwice());
  EXPECT_EQ(step.value(step.outputs().front()).type.dtype, DType::kF32);
}

TEST_P(InBothTypes, EveryNodeHasAReason) {
  const Graph step = compiled_step(net(), training_for(GetParam()));
  for (NodeId node : step.all_nodes()) {
    EXPECT_NE(step.node(node).precision.reason, "")
        << op_name(step.node(node)) << " " << step.node(node).name;
  }
  const Graph graph = compiled(net(), inference_for(GetParam()));
  for (NodeId node : graph.all_nodes()) {
    EXPECT_NE(graph.node(node).precision.reason, "")
        << op_name(graph.node(node)) << " " << graph.node(node).name;
  }
}

TEST_P(InBothTypes, GradientsOfAProductFollowTheProduct) {
  const Graph step = compiled_step(net(), training_for(GetParam()));
  int contractions = 0;
  for (NodeId node : find_nodes(step, NodeQuery{.role = Role::kBackward})) {
    if (step.node(node).op != "MatMul") continue;
    ++contractions;
    EXPECT_EQ(compute_dtype(step, node), GetParam()) << step.node(node).name;
  }
  EXPECT_GE(contractions, 3);
}

// --- masks that are inputs -----------------------------------------------------------------------

/// Attention whose mask a caller gives, as frameworks export it: moved, added, then a softmax.
constexpr const char* kMaskedScores = R"(
main (float[2,8,64,16] q, float[2,8,64,16] k, float[2,8,64,16] v, float[2,64] mask)
    => (float[2,8,64,16] y) <
   int64[2] axes = {1, 2}, float one = {1}, float low = {-60000}
> {
   kt = Transpose <perm = [0, 1, 3, 2]> (k)
   s = MatMul (q, kt)
   hidden = Sub (one, mask)
   bias = Mul (hidden, low)
   bias4 = Unsqueeze (bias, axes)
   t = Add (s, bias4)
   p = Softmax (t)
   y = MatMul (p, v)
}
)";

TEST_P(InBothTypes, AMaskThatIsAnInputIsAddedInF32) {
  const Graph graph = compiled(kMaskedScores, inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("MatMul", GetParam()));
  for (const char* op : {"Sub", "Mul", "Unsqueeze", "Add", "Softmax"}) {
    EXPECT_THAT(graph, RunsIn(op, DType::kF32));
  }
  EXPECT_THAT(graph, CastTimes("mask", GetParam(), 0));
}

TEST_P(InBothTypes, AMaskOfIntegersIsAddedInF32) {
  std::string net = kMaskedScores;
  const std::string input = "float[2,64] mask";
  net.replace(net.find(input), input.size(), "int64[2,64] ids");
  const std::string hidden = "   hidden = Sub";
  net.insert(net.find(hidden), "   mask = Cast <to: int = 1> (ids)\n");
  const Graph graph = compiled(net, inference_for(GetParam()));
  for (const char* op : {"Sub", "Mul", "Unsqueeze", "Add", "Softmax"}) {
    EXPECT_THAT(graph, RunsIn(op, DType::kF32));
  }
}

TEST_P(InBothTypes, AMaskThatTakesThePlaceOfScoresIsF32) {
  const Graph graph = compiled(R"(
main (float[2,8,64,16] q, float[2,8,16,64] k, bool[2,1,1,64] seen, float hidden)
    => (float[2,8,64,64] p) {
   s = MatMul (q, k)
   t = Where (seen, s, hidden)
   p = Softmax (t)
}
)",
                               inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("MatMul", GetParam()));
  EXPECT_THAT(graph, RunsIn("Where", DType::kF32));
  EXPECT_THAT(graph, CastTimes("hidden", GetParam(), 0));
}

TEST_P(InBothTypes, FeaturesThatAreAddedAreNoMask) {
  const Graph graph = compiled(R"(
main (float[32,64] x, float[32,64] y) => (float[32,64] z) <
   float[64,64] w = {)" + numbers(64 * 64) +
                                   R"(}
> {
   a = MatMul (x, w)
   b = Add (a, y)
   z = MatMul (b, w)
}
)",
                               inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("Add", GetParam()));
}

/// x near 1000: what is added to it is of the size of what 16 bits take away.
std::string forecast(const std::string& change) {
  return "main (float[4,8] x, float[4,8] y) => (float loss) <\n   float[8,8] w = {" + numbers(64) +
         R"(}, int64[1] starts = {7}, int64[1] ends = {8}, int64[1] axes = {1}
> {
   last = Slice (x, starts, ends, axes)
   d = Sub (x, last)
   h = MatMul (d, w)
)" + change +
         R"(
   e = Sub (p, y)
   s = Mul (e, e)
   loss = ReduceMean <keepdims = 0> (s)
}
)";
}

TEST_P(InBothTypes, SumsOfWhatIsFedAndRead) {
  CompileOptions options = training_for(GetParam());
  options.train.loss = "";
  options.train.loss_outputs = {"loss"};
  for (const bool refine : {true, false}) {
    options.policy.cost_refinement = refine;
    const Graph step = compiled_step(forecast("   p = Add (h, last)"), options);
    EXPECT_THAT(step, RunsIn("MatMul", GetParam()));
    for (const char* sum : {"p", "e"})
      EXPECT_THAT(step, HasReason(sum, HasSubstr("as they are fed")));
    for (const char* value : {"x", "y", "last"}) EXPECT_THAT(step, CastTimes(value, GetParam(), 0));
    EXPECT_THAT(step, CastTimes("d", GetParam(), 1));
  }
}

/// What is rounded on its way into a product is not held before.
TEST_P(InBothTypes, SumsOfWhatIsFedOnTheirWayIntoProducts) {
  for (const bool refine : {true, false}) {
    CompileOptions options = inference_for(GetParam());
    options.policy.cost_refinement = refine;
    const Graph graph = compiled(
        "main (float[64,64] x, float[64,64] y) => (float[64,64] z) <\n"
        "   float[64,64] w = {" +
            numbers(64 * 64) + R"(}
> {
   a = MatMul (x, w)
   b = Add (a, y)
   s = Sigmoid (b)
   g = Mul (b, s)
   shape = Shape (b)
   r = Reshape (g, shape)
   z = MatMul (r, w)
}
)",
        options);
    for (const char* op : {"Add", "Mul"}) EXPECT_THAT(graph, RunsIn(op, GetParam()));
  }
}

/// The residual of the data, block by block: what is taken from it, and from what is left.
TEST_P(InBothTypes, SumsOfSumsOfWhatIsFed) {
  const Graph graph = compiled(
      "main (float[64,64] x) => (float[64,64] r) <\n"
      "   float[64,64] w = {" +
          numbers(64 * 64) + R"(}
> {
   a = MatMul (x, w)
   p = Sub (x, a)
   b = MatMul (p, w)
   q = Sub (p, b)
   c = MatMul (q, w)
   r = Sub (q, c)
}
)",
      inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("Sub", DType::kF32));
  EXPECT_THAT(graph, RunsIn("MatMul", GetParam()));
}

/// A normalization takes most of such a sum away, and its gradient looks at it again; so does a
/// gradient that looks for the largest.
TEST_P(InBothTypes, WhatReadsSumsOfWhatIsFed) {
  CompileOptions options = training_for(GetParam());
  const std::string net = "main (float[4,64] x) => (float[4,64] z) <\n   float[64,64] w = {" +
                          numbers(64 * 64) + "}, float[64] scale = {" + numbers(64) + R"(}
> {
   a = MatMul (x, w)
   b = Add (a, x)
   n = LayerNormalization (b, scale)
   z = MatMul (n, w)
}
)";
  const Graph step = compiled_step(net, options);
  for (const char* op : {"LayerNormalization", "ai.halfnote.LayerNormalizationGrad"})
    EXPECT_THAT(step, RunsIn(op, DType::kF32));
  EXPECT_THAT(step, RunsIn("MatMul", GetParam()));
  EXPECT_THAT(step, CastTimes("b", GetParam(), 0));
  const std::string pool =
      "main (float[4,2,32] x) => (float[4,2,16] z) <\n"
      "   float[32,32] w = {" +
      numbers(32 * 32) + "}, float[16,16] v = {" + numbers(256) + R"(}
> {
   a = MatMul (x, w)
   b = Add (a, x)
   p = MaxPool <kernel_shape = [2], strides = [2]> (b)
   m = ReduceMean <keepdims = 1> (p)
   d = Sub (p, m)
   z = MatMul (d, v)
}
)";
  const Graph pooled = compiled_step(pool, options);
  EXPECT_THAT(pooled, RunsIn("MaxPool", DType::kF32));
  EXPECT_THAT(pooled, RunsIn("ai.halfnote.MaxPoolGrad", DType::kF32));
}

/// A product with it keeps what digits 16 bits have; so does one with a mask of 0 and 1.
TEST_P(InBothTypes, ProductsWithWhatIsFedAreRounded) {
  const Graph graph = compiled(
      "main (float[4,64] x, float[4,1] mask) => (float[4,64] z) <\n"
      "   float[64,64] w = {" +
          numbers(64 * 64) + R"(}
> {
   a = MatMul (x, w)
   b = Mul (a, mask)
   z = MatMul (b, w)
}
)",
      inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("Mul", GetParam()));
}

/// Also where the sum is what the graph returns, or only moved before an f32 node reads it.
TEST_P(InBothTypes, SumsOfWhatIsFedAndReturned) {
  for (const char* behind : {"   z = Add (a, x)", "   b = Add (a, x)\n   z = Neg (b)",
                             "   b = Add (a, x)\n   t = Transpose (b)\n   z = Exp (t)",
                             "   b = Add (a, x)\n   c = Sub (b, y)\n   z = Relu (c)"}) {
    SCOPED_TRACE(behind);
    const Graph graph = compiled(
        "main (float[64,64] x, float[64,64] y) => (float[64,64] z) <\n   float[64,64] w = {" +
            numbers(64 * 64) + "}\n> {\n   a = MatMul (x, w)\n" + behind + "\n}\n",
        inference_for(GetParam()));
    EXPECT_THAT(graph, RunsIn("Add", DType::kF32));
    EXPECT_THAT(graph, RunsIn("MatMul", GetParam()));
  }
}

TEST_P(InBothTypes, AShapeReadsNoNumbers) {
  const Graph graph = compiled(R"(
main (float[64,64] x) => (float[64,64] z, int64[2] s) <
   float[64,64] w = {)" + numbers(64 * 64) +
                                   R"(}
> {
   t = Transpose (x)
   z = MatMul (t, w)
   s = Shape (t)
}
)",
                               inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("Transpose", GetParam()));
}

/// The part that a product reads is 16-bit; what else reads it has it as it is fed.
TEST_P(InBothTypes, PartsOfWhatIsFedAreAsTheyAreForF32) {
  const Graph graph =
      compiled(R"(
main (float[64,80] x, float[1,64] mean) => (float[64,32] z, float[64,64] d) <
   float[64,32] w = {)" +
                   numbers(64 * 32) +
                   R"(}, int64[1] starts = {0}, int64[1] ends = {64}, int64[1] axes = {1}
> {
   part = Slice (x, starts, ends, axes)
   z = MatMul (part, w)
   c = Sub (part, mean)
   d = Mul (c, c)
}
)",
               inference_for(GetParam()));
  EXPECT_THAT(graph, RunsIn("Slice", DType::kF32));
  EXPECT_THAT(graph, RunsIn("Sub", DType::kF32));
  EXPECT_THAT(graph, CastTimes("part", GetParam(), 1));
}

/// Its gradient takes the mean from x again, beside a 16-bit gradient.
TEST_P(InBothTypes, NormalizationsOfWhatIsFed) {
  const Graph step = compiled_step(R"(
main (float[64,64] x) => (float[64,64] z) <
   float[64,64] w = {)" + numbers(64 * 64) +
                                       "}, float[64] scale = {" + numbers(64) + R"(}
> {
   n = LayerNormalization (x, scale)
   z = MatMul (n, w)
}
)",
                                   training_for(GetParam()));
  EXPECT_THAT(step, RunsIn("LayerNormalization", DType::kF32));
  EXPECT_THAT(step, RunsIn("ai.halfnote.LayerNormalizationGrad", DType::kF32));
  EXPECT_THAT(step, CastTimes("x", GetParam(), 0));
}

/// ONNX has no InstanceNormalization with f32 statistics, but the GroupNormalization that is one.
TEST_P(InBothTypes, AnInstanceNormalizationBetweenProductsIsAGroupNormalization) {
  const std::string text =
      "main (float[1,2,4,4] x, float[2,2,1,1] w, float[2] s, float[2] b) => (float[1,2,4,4] y) {\n"
      "   a = Conv (x, w)\n   n = InstanceNormalization (a, s, b)\n   y = Conv (n, w)\n}\n";
  CompileOptions options = inference_for(GetParam());
  const Graph graph = compiled(text, options);
  EXPECT_THAT(graph, RunsIn("GroupNormalization", DType::kF32));
  const NodeId norm = find_node(graph, "n");
  EXPECT_EQ(graph.value(graph.output(norm)).type.dtype, GetParam());
  EXPECT_EQ(graph.node(norm).attributes.get_int("num_groups", 0), 2);
  options.policy.fp32_ops = {"InstanceNormalization"};
  EXPECT_THAT(compiled(text, options), RunsIn("InstanceNormalization", DType::kF32));
  options.policy.fp32_ops.clear();
  options.policy.like = "pytorch";
  EXPECT_THAT(compiled(text, options), RunsIn("InstanceNormalization", DType::kF32));
  options.policy.like = "keras";  // has the whole model in 16 bits
  EXPECT_THAT(compiled(text, options), RunsIn("GroupNormalization", DType::kF32));
}

INSTANTIATE_TEST_SUITE_P(Precision, InBothTypes, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(short_name(test.param)); });

// --- policy --------------------------------------------------------------------------------------

TEST(PolicyRules, AnFp32OpRuleHolds) {
  CompileOptions options = inference_for(DType::kBF16);
  options.policy.fp32_ops = {"MatMul"};
  const Graph graph = compiled(net(), options);
  EXPECT_THAT(graph, RunsIn("MatMul", DType::kF32));
  EXPECT_THAT(graph, HasReason("a", HasSubstr("policy: --fp32-op MatMul")));
}

TEST(PolicyRules, AnAllowOpRuleHolds) {
  CompileOptions options = inference_for(DType::kBF16);
  options.policy.allow_ops = {"Softmax"};
  const Graph graph = compiled(net(), options);
  EXPECT_THAT(graph, RunsIn("Softmax", DType::kBF16));
  EXPECT_THAT(graph, HasReason("p", HasSubstr("policy: --allow-op Softmax")));
}

TEST(PolicyRules, ANodeRuleBeatsAnOpRule) {
  CompileOptions options = inference_for(DType::kBF16);
  options.policy.fp32_ops = {"MatMul"};
  options.policy.allow_nodes = {"a"};
  const Graph graph = compiled(net(), options);
  EXPECT_THAT(graph, HasReason("a", HasSubstr("policy: --allow-node a")));
  EXPECT_THAT(graph, HasReason("m", HasSubstr("policy: --fp32-op MatMul")));
  EXPECT_EQ(compute_dtype(graph, find_node(graph, "a")), DType::kBF16);
  EXPECT_EQ(compute_dtype(graph, find_node(graph, "m")), DType::kF32);
}

TEST(PolicyRules, ANodeRuleHoldsForTheGradientsOfTheNode) {
  CompileOptions options = training_for(DType::kBF16);
  options.policy.fp32_nodes = {"m"};
  const Graph step = compiled_step(net(), options);
  for (NodeId node : find_nodes(step, NodeQuery{.op = "MatMul", .origin = "m"})) {
    EXPECT_EQ(compute_dtype(step, node), DType::kF32) << step.node(node).name;
  }
}

struct BadPolicy {
  const char* name;
  void (*set)(Policy&);
  std::vector<std::string> parts;  // of the message
};

class PolicyErrors : public testing::TestWithParam<BadPolicy> {};

TEST_P(PolicyErrors, AreUsageErrorsThatSayWhat) {
  CompileOptions options = inference_for(DType::kBF16);
  GetParam().set(options.policy);
  Model model = model_of(net());
  const std::string message = error_of([&] { run_all(model, options); }, ErrorCode::kUsage);
  for (const std::string& part : GetParam().parts) EXPECT_THAT(message, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    Policy, PolicyErrors,
    testing::Values(BadPolicy{"OpInBothLists",
                              [](Policy& p) {
                                p.allow_ops = {"Softmax"};
                                p.fp32_ops = {"Softmax"};
                              },
                              {"Softmax", "both lists"}},
                    BadPolicy{"NodeMatchedByBoth",
                              [](Policy& p) {
                                p.allow_nodes = {"a|m"};
                                p.fp32_nodes = {"m"};
                              },
                              {"contradict", "--allow-node \"a|m\"", "--fp32-node \"m\""}},
                    BadPolicy{"UnmatchedNode",
                              [](Policy& p) { p.fp32_nodes = {"q"}; },
                              {"--fp32-node matches nothing", "\"q\"", "lists nodes"}},
                    BadPolicy{"UnmatchedOp",
                              [](Policy& p) { p.fp32_ops = {"Conv"}; },
                              {"--fp32-op matches nothing", "\"Conv\""}},
                    BadPolicy{"MisspelledOp",
                              [](Policy& p) { p.allow_ops = {"Softmx"}; },
                              {"names no operator", "did you mean Softmax?"}},
                    BadPolicy{"BadPattern",
                              [](Policy& p) { p.allow_nodes = {"["}; },
                              {"--allow-node", "regular expression"}}),
    [](const auto& test) { return std::string(test.param.name); });

// --- legality and constants ----------------------------------------------------------------------

/// `op` between two products: in 16 bits wherever that is legal.
std::string between(const std::string& node, const std::string& constants = "") {
  return "main (float[8,16] x) => (float[8,16] y) <\n   float[16,16] w = {" + numbers(256) + "}" +
         constants + "\n> {\n   a = MatMul (x, w)\n   " + node + "\n   y = MatMul (t, w)\n}\n";
}

TEST(Legality, AnOpThatOpset23HasNotInBf16StaysF32WithTheReason) {
  // Shrink never got bf16.
  const Graph graph = compiled(between("t = Shrink (a)"), inference_for(DType::kBF16));
  const NodeId node = find_nodes(graph, "Shrink").empty() ? find_node(graph, "t")
                                                          : find_nodes(graph, "Shrink").front();
  ASSERT_TRUE(node.valid());
  EXPECT_EQ(compute_dtype(graph, node), DType::kF32);
  EXPECT_THAT(graph.node(node).precision.reason, HasSubstr("not legal in bf16"));
  EXPECT_THAT(graph, RunsIn("MatMul", DType::kBF16));
}

TEST(Legality, TheUsersRuleCannotMakeAnIllegalNode) {
  CompileOptions options = inference_for(DType::kBF16);
  options.policy.allow_ops = {"Shrink"};
  const Graph graph = compiled(between("t = Shrink (a)"), options);
  EXPECT_THAT(graph, RunsIn("Shrink", DType::kF32));
}

TEST(Constants, OnesThatOverflowKeepTheirNodeF32) {
  const std::string text = between("t = Mul (a, big)", ",\n   float big = {100000}");
  const Graph f16 = compiled(text, inference_for(DType::kF16));
  EXPECT_THAT(f16, RunsIn("Mul", DType::kF32));
  EXPECT_THAT(f16, HasReason("t", HasSubstr("constant \"big\" does not fit f16")));
  EXPECT_THAT(compiled(text, inference_for(DType::kBF16)), RunsIn("Mul", DType::kBF16));
}

TEST(Constants, OnesThatVanishKeepTheirNodeF32) {
  const std::string text = between("t = Add (a, tiny)", ",\n   float tiny = {1e-12}");
  const Graph f16 = compiled(text, inference_for(DType::kF16));
  EXPECT_THAT(f16, RunsIn("Add", DType::kF32));
  EXPECT_THAT(f16, HasReason("t", HasSubstr("does not fit")));
  EXPECT_THAT(compiled(text, inference_for(DType::kBF16)), RunsIn("Add", DType::kBF16));
}

TEST(Constants, AnInfiniteMaskFits) {
  const Graph graph = compiled(between("t = Add (a, mask)", ",\n   float mask = {-inf}"),
                               inference_for(DType::kF16));
  EXPECT_THAT(graph, RunsIn("Add", DType::kF16));
}

// --- fp32 ----------------------------------------------------------------------------------------

TEST(Fp32Policy, LeavesTheInferenceGraphAsItIs) {
  const CompileOptions options = inference_for(DType::kF32);
  Model model = model_of(net());
  run_rows(model, options, rows_before("assign-precision"));
  Model decided = model;
  EXPECT_TRUE(run_rows(decided, options, {row_of("assign-precision")}).changed);
  for (NodeId node : decided.graph.all_nodes()) {
    EXPECT_EQ(decided.graph.node(node).precision.reason, "precision fp32: all is f32");
    decided.graph.node(node).precision.reason = {};
  }
  EXPECT_EQ(print(decided), print(model)) << "only reasons are new";
  run_rows(model, options, {row_of("assign-precision")});
  const std::string before = print(model);
  for (const char* pass : {"insert-casts", "scale-loss", "clean-casts", "sweep-casts", "pad-to-8",
                           "clean-padding", "sweep-padding"}) {
    EXPECT_FALSE(run_rows(model, options, {row_of(pass)}).changed) << pass;
    EXPECT_EQ(print(model), before) << pass;
  }
}

TEST(Fp32Policy, ATrainingStepHasNoCastNoScaleNoCheck) {
  const Graph step = compiled_step(net(), training_for(DType::kF32));
  EXPECT_THAT(step, HasOp("Cast", 0));
  EXPECT_THAT(step, HasOp("Pad", 0));
  EXPECT_THAT(step, HasOp("ai.halfnote.AllFinite", 0));
  EXPECT_FALSE(step.find("loss_scale").valid());
}

}  // namespace
}  // namespace halfnote::test
