// Activations computed again within a limit on memory: which, where, that no bit changes, and what
// is left alone.
#include <fmt/format.h>

#include "compiler/ir/text.h"
#include "passes/device/live_ranges.h"
#include "passes/device/pointwise/split_pointwise.h"
#include "passes/device/rematerialize.h"
#include "random_graph.h"
#include "runtime/core/evaluate.h"
#include "support.h"

namespace halfnote::test {
namespace {

using testing::HasSubstr;

size_t count_ops(const Graph& graph, std::string_view op) {
  size_t found = 0;
  for (NodeId node : graph.nodes()) found += graph.node(node).op == op;
  return found;
}

std::vector<Tensor> results_of(const Model& model) {
  std::vector<Tensor> inputs;
  for (ValueId input : model.graph.inputs()) inputs.push_back(test_input(model.graph, input, {}));
  return evaluate(model.graph, inputs, {});
}

/// Nodes from this one on are the backward pass.
void begin_backward(Graph& graph, std::string_view name) {
  bool behind = false;
  for (NodeId id : graph.nodes()) {
    behind = behind || graph.label(id) == name;
    if (behind) graph.node(id).role = Role::kBackward;
  }
}

Ran recompute(Model& model, int64_t limit) {
  limit_activations(model, limit);
  return run_rows(model, {}, {row_of("rematerialize")});
}

/// Runs the pass; all results keep their bits.
Ran expect_same_results(Model& model, int64_t limit) {
  const std::vector<Tensor> before = results_of(model);
  Ran ran = recompute(model, limit);
  const std::vector<Tensor> after = results_of(model);
  EXPECT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size() && i < after.size(); ++i) {
    EXPECT_TRUE(identical(before[i], after[i])) << "output " << i << " of\n" << print(model);
  }
  return ran;
}

/// Two layers, forward and back; each result has 4 KB, `w` is a weight.
Model two_layers() {
  Model model = model_of(R"(main (float[32,32] x, float[32,32] w) => (float[32,32] dx) {
      [a] float[32,32] a = MatMul (x, w)
      [h] float[32,32] h = Tanh (a)
      [b] float[32,32] b = MatMul (h, w)
      [y] float[32,32] y = Erf (b)
      [dy] float[32,32] dy = Mul (y, b)
      [db] float[32,32] db = MatMul (dy, w)
      [dw] float[32,32] dw = MatMul (h, db)
      [dh] float[32,32] dh = Mul (dw, a)
      [dx] float[32,32] dx = MatMul (dh, w) })");
  begin_backward(model.graph, "dy");
  return model;
}

TEST(LiveRanges, AreThoseOfTheOrder) {
  const Model model = two_layers();
  const LiveRanges live(model.graph);
  const auto range = [&](const char* name) {
    const ValueId value = model.graph.find(name);
    return std::pair(live.first(value), live.last(value));
  };
  EXPECT_EQ(range("a"), std::pair(0, 7));
  EXPECT_EQ(range("h"), std::pair(1, 6));
  EXPECT_EQ(range("y"), std::pair(3, 4));
  EXPECT_EQ(range("dx"), std::pair(8, LiveRanges::kEnd));
  EXPECT_EQ(range("x").first, LiveRanges::kNever);
  EXPECT_EQ(live.peak(), 5 * 4096);  // a, h, b, y and dy
  EXPECT_EQ(live.peak_position(), 4);
}

TEST(LiveRanges, AViewHoldsWhatItLooksAt) {
  const Model model = model_of(R"(main (float[4] x) => (float[4] y) {
      [a] float[4] a = Neg (x)
      [v] float[4] v = Identity (a)
      [b] float[4] b = Neg (x)
      [y] float[4] y = Add (v, b) })");
  const LiveRanges live(model.graph);
  const ValueId a = model.graph.find("a"), v = model.graph.find("v");
  EXPECT_EQ(live.root(v), a);
  EXPECT_EQ(live.last(a), 3);
  EXPECT_EQ(live.peak(), 48);
}

TEST(Rematerialize, ComputesTheCheapOneAgain) {
  Model model = two_layers();
  const Ran ran = expect_same_results(model, 4 * 4096);
  EXPECT_TRUE(ran.changed);
  EXPECT_EQ(count_ops(model.graph, "Tanh"), 2u);  // a is held anyway
  EXPECT_EQ(count_ops(model.graph, "MatMul"), 5u);
  EXPECT_LE(LiveRanges(model.graph).peak(), 4 * 4096);
  ASSERT_EQ(ran.remarks.size(), 1u);
  EXPECT_THAT(ran.remarks[0].text, HasSubstr("1 node(s) are computed again"));
}

TEST(Rematerialize, GoesOnWithWhatThatNeeds) {
  Model model = two_layers();
  expect_same_results(model, 3 * 4096);
  EXPECT_EQ(count_ops(model.graph, "Tanh"), 2u);
  EXPECT_EQ(count_ops(model.graph, "MatMul"), 7u);  // a too, where h and where dh reads it
  EXPECT_LE(LiveRanges(model.graph).peak(), 3 * 4096);
}

TEST(Rematerialize, LeavesAloneWhatFits) {
  for (const int64_t limit : {int64_t{0}, int64_t{5 * 4096}, int64_t{1} << 40}) {
    Model model = two_layers();
    EXPECT_FALSE(recompute(model, limit).changed) << limit;
  }
}

TEST(Rematerialize, LeavesAloneRandomDrawsOutputsAndTheBackwardPass) {
  Model model = model_of(R"(main (float[32,32] x) => (float[32,32] out, float[32,32] kept) {
      [noise] float[32,32] noise = RandomNormalLike (x)
      [kept] float[32,32] kept = Tanh (x)
      [s] float[32,32] s = Add (noise, kept)
      [t] float[32,32] t = Erf (s)
      [g] float[32,32] g = Erf (t)
      [u] float[32,32] u = Mul (g, kept)
      [out] float[32,32] out = Add (u, noise) })");
  begin_backward(model.graph, "g");
  recompute(model, 4096);
  EXPECT_EQ(count_ops(model.graph, "RandomNormalLike"), 1u);
  EXPECT_EQ(count_ops(model.graph, "Tanh"), 1u);
}

TEST(Rematerialize, ChangesNoBitOfRandomModels) {
  size_t changed = 0, smaller = 0;
  for (uint64_t seed = 0; seed < 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Model model = random_model(seed);
    const std::vector<NodeId> nodes = model.graph.nodes();
    if (nodes.size() < 4) continue;
    begin_backward(model.graph, model.graph.label(nodes[nodes.size() / 2]));
    if (seed % 2 != 0) run_rows(model, {}, {row_of("fuse-pointwise")});
    const int64_t peak = LiveRanges(model.graph).peak();
    if (!expect_same_results(model, std::max<int64_t>(peak / 2, 1)).changed) continue;
    ++changed;
    smaller += LiveRanges(model.graph).peak() < peak;
  }
  EXPECT_GE(changed, 10u) << "too little to do for this test to say anything";
  EXPECT_GE(2 * smaller, changed);
}

/// Each layer's chain has two results, and reads one of the chain before it.
Model dense_chains() {
  std::string text =
      "main (float[32,32] z0, float[32,32] c0, float[32,32] w) => (float[32,32] d0) {\n";
  for (int i = 1; i <= 30; ++i) {
    text += fmt::format(R"([a{0}] float[32,32] a{0} = MatMul (z{1}, w)
      [p{0}] float[32,32] c{0}, float[32,32] z{0} = ai.halfnote.Pointwise
        <program = "t0:f32 = Tanh(x0); t1:f32 = Add(t0, x1); out t0, t1"> (a{0}, c{1})
      )",
                        i, i - 1);
  }
  text += "[d30] float[32,32] d30 = Mul (z30, c30)\n";
  for (int i = 30; i >= 1; --i) {
    text += fmt::format(R"([g{0}] float[32,32] g{0} = Mul (d{0}, c{0})
      [d{1}] float[32,32] d{1} = MatMul (g{0}, w)
      )",
                        i, i - 1);
  }
  Model model = model_of(text + "}");
  begin_backward(model.graph, "d30");
  return model;
}

TEST(Rematerialize, SplitsChainsWhereThatLeadsFurther) {
  Model model = dense_chains();
  const int64_t limit = 14 * 4096;
  EXPECT_GT(LiveRanges(model.graph).peak(), limit);
  expect_same_results(model, limit);
  EXPECT_LE(LiveRanges(model.graph).peak(), limit);
}

Model chain(std::string_view program, std::string_view results) {
  return model_of(fmt::format(R"(main (float[8] x, float[8] y, float one) => ({1}) {{
      [p] {1} = ai.halfnote.Pointwise <program = "{0}", nodes = ["a", "b", "c"]> (x, y, one) }})",
                              program, results));
}

TEST(SplitPointwise, GivesEachResultWhatItNeeds) {
  Model model = chain("t0:f32 = Tanh(x0); t1:f32 = Add(t0, x2); t2:f32 = Mul(t1, x1); out t1, t2",
                      "float[8] r, float[8] s");
  const std::vector<Tensor> before = results_of(model);
  ASSERT_TRUE(split_pointwise(model.graph));
  const std::string text = print(model);
  EXPECT_THAT(text, HasSubstr("\"t0:f32 = Tanh(x0); t1:f32 = Add(t0, x1); out t1\""));
  EXPECT_THAT(text, HasSubstr("\"t0:f32 = Mul(x0, x1); out t0\""));
  EXPECT_THAT(text, HasSubstr("strings = [\"a\", \"b\"]"));
  EXPECT_THAT(text, HasSubstr("(x, one)"));
  EXPECT_THAT(text, HasSubstr("(r, y)"));
  const std::vector<Tensor> after = results_of(model);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(identical(before[i], after[i])) << i;
}

TEST(SplitPointwise, RepeatsAStepThatIsNoResult) {
  Model model = chain("t0:f32 = Tanh(x0); t1:f32 = Neg(t0); t2:f32 = Mul(t0, x1); out t1, t2",
                      "float[8] r, float[8] s");
  const std::vector<Tensor> before = results_of(model);
  ASSERT_TRUE(split_pointwise(model.graph));
  EXPECT_THAT(print(model), HasSubstr("\"t0:f32 = Tanh(x0); t1:f32 = Neg(t0); out t1\""));
  EXPECT_THAT(print(model), HasSubstr("\"t0:f32 = Tanh(x0); t1:f32 = Mul(t0, x1); out t1\""));
  const std::vector<Tensor> after = results_of(model);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(identical(before[i], after[i])) << i;
}

TEST(SplitPointwise, LeavesAloneWhatGainsNothing) {
  // All need the same; a number alone is no operand to save; the backward pass.
  for (const char* program : {"t0:f32 = Add(x0, x1); t1:f32 = Mul(t0, x2); out t0, t1",
                              "t0:f32 = Add(x0, x1); t1:f32 = Mul(t0, x0); out t0, t1"}) {
    Model model = chain(program, "float[8] r, float[8] s");
    EXPECT_FALSE(split_pointwise(model.graph)) << program;
  }
  Model model =
      chain("t0:f32 = Tanh(x0); t1:f32 = Mul(t0, x1); out t0, t1", "float[8] r, float[8] s");
  begin_backward(model.graph, "p");
  EXPECT_FALSE(split_pointwise(model.graph));
}

}  // namespace
}  // namespace halfnote::test
