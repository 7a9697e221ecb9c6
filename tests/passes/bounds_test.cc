// What small or ordinary models may not make of a compilation: loops in loops, constants that
// double, values that the whole graph reads.
#include <fmt/format.h>

#include "passes/canonical/control/flatten_control.h"
#include "passes/canonical/fold_constants.h"
#include "support.h"

namespace halfnote::test {
namespace {

size_t count_ops(const Model& model, std::string_view op) {
  size_t found = 0;
  for (NodeId node : model.graph.all_nodes()) found += model.graph.node(node).op == op;
  return found;
}

size_t longest_name(const Graph& graph) {
  size_t longest = 0;
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    longest = std::max(longest, graph.value(ValueId{i}).name.size());
  }
  return longest;
}

/// A Loop of n trips, and in its body another, `levels` of them; the innermost is a Tanh.
std::string loop(int levels, std::string_view in, std::string_view out) {
  if (levels == 0) return fmt::format("{} = Tanh ({})", out, in);
  const int k = levels;
  const std::string inner = loop(levels - 1, fmt::format("v{}", k), fmt::format("w{}", k));
  return fmt::format(
      "{2} = Loop <body: graph = b{0} (int64 i{0}, bool c{0}, float[2] v{0}) => (d{0}, w{0}) "
      "{{ d{0} = Identity (c{0}) {3} }}> (n, go, {1})",
      k, in, out, inner);
}

Model loops(int levels, int trips) {
  return model_of(
      fmt::format("main (float[2] x) => (y) <int64 n = {{{}}}, bool go = {{1}}> {{ {} }}", trips,
                  loop(levels, "x", "y")));
}

TEST(Bounds, LoopsInLoopsAreWrittenOutWhileAllOfThemIsLittle) {
  Model model = loops(2, 10);
  const Model source = model;
  run_until(model, {.inference_only = true}, "flatten-control");
  EXPECT_EQ(count_ops(model, "Loop") + count_ops(model, "Scan"), 0u);
  EXPECT_EQ(count_ops(model, "Tanh"), 100u);
  EXPECT_EQ(expect_agreement(execute(source), execute(model), 0), 1);
}

TEST(Bounds, TheTripsOfLoopsInLoopsMultiply) {
  Model model = loops(2, 65);  // 65 * 65 nodes
  run_until(model, {.inference_only = true}, "flatten-control");
  EXPECT_EQ(count_ops(model, "Scan"), 1u) << "the outer one stays a loop";
  EXPECT_EQ(count_ops(model, "Tanh"), 65u);

  Model deep = loops(14, 2);
  run_until(deep, {.inference_only = true}, "flatten-control");
  EXPECT_GT(count_ops(deep, "Scan"), 0u);
  const size_t around = 14;  // a node for each loop that stays
  EXPECT_LE(deep.graph.all_nodes().size(), static_cast<size_t>(kMaxUnrolledNodes) + around);
}

TEST(Bounds, ManyLoopsShareOneBound) {
  std::string nodes;
  for (int i = 0; i < 6; ++i) {
    nodes += fmt::format(
        "y{0} = Loop <body: graph = b{0} (int64 i{0}, bool c{0}, float[2] v{0}) => (d{0}, w{0}) "
        "{{ d{0} = Identity (c{0}) w{0} = Tanh (v{0}) }}> (n, go, x)\n",
        i);
  }
  Model model =
      model_of("main (float[2] x) => (y0, y1, y2, y3, y4, y5) <int64 n = {2000}, bool go = {1}> {" +
               nodes + "}");
  run_until(model, {.inference_only = true}, "flatten-control");
  EXPECT_EQ(count_ops(model, "Tanh"), 4u * 2000 + 2);
  EXPECT_EQ(count_ops(model, "Scan"), 2u);
}

TEST(Bounds, BodiesWithinBodiesHaveAGradientWhileTheyAreFew) {
  const auto train = [](int nodes) {
    std::string chain;
    for (int i = 0; i < nodes; ++i) chain += fmt::format("h{1} = Tanh (h{0})\n", i, i + 1);
    Model model = model_of(fmt::format(
        "main (float[2] x, bool c, bool d) => (l) <float[2] w = {{1, 2}}> {{ h0 = Mul (x, w)\n"
        "y = If <then_branch: graph = t () => (a) {{ a = If <then_branch: graph = u () => (h{}) {{ "
        "{}"
        "}}, else_branch: graph = v () => (b) {{ b = Neg (h0) }}> (d) }}, else_branch: graph = e "
        "() "
        "=> (n) {{ n = Neg (h0) }}> (c) l = ReduceSum <keepdims: int = 0> (y) }}",
        nodes, chain));
    CompileOptions options;
    options.train.loss_outputs = {"l"};
    run_until(model, options, "differentiate");
  };
  EXPECT_NO_THROW(train(10));
  try {
    train(40'000);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("expected at most 40000"), std::string::npos)
        << error.what();
  }
}

TEST(Bounds, NamesOfCopiesGrowByTheirDepth) {
  Model model = loops(9, 2);
  run_until(model, {.inference_only = true}, "flatten-control");
  EXPECT_EQ(count_ops(model, "Tanh"), 512u);
  EXPECT_LE(longest_name(model.graph), 9 * std::string_view("w9/0/").size() + 32);
}

TEST(Bounds, ConstantsThatDoubleAreFoldedAsFarAsOneMayBe) {
  std::string nodes;
  for (int i = 0; i < 40; ++i)
    nodes += fmt::format("d{1} = Concat <axis: int = 0> (d{0}, d{0})\n", i, i + 1);
  Model model = model_of("main (int64 x) => (y) <int64[1] d0 = {1}> {" + nodes +
                         "r = ReduceSum <keepdims: int = 0> (d40) y = Add (x, r) }");
  run_rows(model, {}, {row_of("fold-constants")});
  EXPECT_EQ(count_ops(model, "Concat"), 40u - 21) << "2^21 integers are 16 MiB";
}

TEST(Bounds, AllFoldedConstantsShareOneBound) {
  std::string nodes, outputs;
  for (int i = 0; i < 10; ++i) {
    nodes += fmt::format("a{0} = Expand (one, size) y{0} = Gather (a{0}, x)\n", i);
    outputs += fmt::format("{}y{}", i == 0 ? "" : ", ", i);
  }
  Model model = model_of("main (int64 x) => (" + outputs +
                         ") <int64[1] size = {2097152}, int64[1] one = {1}> {" + nodes + "}");
  run_rows(model, {}, {row_of("fold-constants")});
  EXPECT_EQ(count_ops(model, "Expand"), 10u - 4) << "four times 16 MiB";
  EXPECT_EQ(Folder::kMostFolded, size_t{64} << 20);
}

// The work on a value with many readers must not be done again for each of them: with it these two
// take minutes.
constexpr int kReaders = 20000;

TEST(Bounds, AValueThatAllNodesReadIsNoChainToComputeAgain) {
  std::string forward, backward;
  for (int i = 0; i < kReaders; ++i) {
    forward += fmt::format("t{0} = Tanh (h{0}) h{1} = Add (t{0}, h0)\n", i, i + 1);
    backward += fmt::format("g{1} = ai.halfnote.TanhGrad (g{0}, t{2})  # role=backward\n", i, i + 1,
                            kReaders - 1 - i);
  }
  Model model = model_of(
      fmt::format("main (float[4] x, float[4] g0) => (h{0}, g{0}) {{\nh0 = Neg (x)\n", kReaders) +
      forward + backward + "}");
  run_rows(model, {}, {row_of("infer-shapes")});
  EXPECT_FALSE(run_rows(model, {}, {row_of("recompute-pointwise")}).changed);
}

TEST(Bounds, ChainsThatBeginWithOneValueAreAllComputedAgain) {
  std::string nodes;
  for (int i = 0; i < kReaders; ++i) nodes += fmt::format("t{0} = Tanh (x)\n", i);
  for (int i = 0; i < kReaders; ++i) {
    nodes += fmt::format("g{1} = ai.halfnote.TanhGrad (g{0}, t{0})  # role=backward\n", i, i + 1);
  }
  Model model =
      model_of(fmt::format("main (float[4] x, float[4] g0) => (g{}) {{\n", kReaders) + nodes + "}");
  run_rows(model, {}, {row_of("infer-shapes")});
  EXPECT_TRUE(run_rows(model, {}, {row_of("recompute-pointwise")}).changed);
  EXPECT_EQ(count_ops(model, "Tanh"), 2u * kReaders);
}

}  // namespace
}  // namespace halfnote::test
