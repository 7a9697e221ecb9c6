// Fused pointwise nodes on the kernels that run trains with: every output of random models and of a
// chain in each type has the bits of the unfused graph; long chains stay within the bounds.
#include <fmt/format.h>

#include "compiler/ir/text.h"
#include "random_graph.h"
#include "runtime/core/evaluate.h"
#include "support.h"

namespace halfnote::test {
namespace {

std::vector<Tensor> run_on(const Model& model, std::string_view kernels) {
  std::vector<Tensor> inputs;
  for (ValueId input : model.graph.inputs()) inputs.push_back(test_input(model.graph, input, {}));
  return evaluate(model.graph, inputs, {.kernels = kernels});
}

size_t count(const Model& model, std::string_view op) {
  size_t found = 0;
  for (NodeId node : model.graph.nodes()) found += model.graph.node(node).op == op;
  return found;
}

/// Runs the passes; on the best kernels and on the references the model's results keep their bits.
void expect_same_bits(Model& model,
                      const std::vector<PassRow>& passes = {row_of("fuse-pointwise")}) {
  const Model source = model;
  run_rows(model, {}, passes);
  for (const std::string_view kernels : {"", "reference"}) {
    const std::vector<Tensor> before = run_on(source, kernels), after = run_on(model, kernels);
    ASSERT_EQ(before.size(), after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_EQ(before[i].byte_size(), after[i].byte_size());
      EXPECT_EQ(std::memcmp(before[i].bytes(), after[i].bytes(), before[i].byte_size()), 0)
          << "output " << i << " on \"" << kernels << "\" of\n"
          << print(model);
    }
  }
}

TEST(FusePointwise, ChangesNoBitOfRandomModels) {
  size_t fused = 0;
  for (uint64_t seed = 0; seed < 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Model model = random_model(seed);
    expect_same_bits(model);
    fused += count(model, "Pointwise");
  }
  EXPECT_GE(fused, 20u) << "too little to do for this test to say anything";
}

TEST(FusePointwise, ChangesNoBitOfAnActivationAndItsGradient) {
  for (const char* type : {"float", "bfloat16", "float16"}) {
    SCOPED_TRACE(type);
    const std::string full = fmt::format("{}[37,130]", type), row = fmt::format("{}[130]", type),
                      one = type;
    Model model = model_of(fmt::format(
        "main ({0} x, {0} dy, {1} bias, {2} root) => ({0} y, {0} dx, float[37,130] wide) {{\n"
        "[a] {0} a = Add (bias, x)\n[d] {0} d = Div (a, root)\n[e] {0} e = Erf (d)\n"
        "[y] {0} y = Mul (a, e)\n[g] {0} g = Mul (dy, a)\n"
        "[h] {0} h = ai.halfnote.ErfGrad (g, d)\n[k] {0} k = Mul (dy, e)\n"
        "[dx] {0} dx = Add (h, k)\n[w] float[37,130] wide = Cast <to: int = 1> (dx) }}",
        full, row, one));
    expect_same_bits(model);
    EXPECT_EQ(count(model, "Pointwise"), 1u);
    EXPECT_EQ(model.graph.nodes().size(), 1u);
  }
}

/// Nothing of the activation is stored for its gradient but its operand, which is there anyway.
TEST(FusePointwise, WithRecomputationStoresOnlyTheOperandOfAnActivation) {
  for (const char* type : {"bfloat16", "float16"}) {
    SCOPED_TRACE(type);
    Model model = model_of(fmt::format(
        "main ({0}[37,130] x, {0}[37,130] dy) => ({0}[37,130] p, float[37,130] dx) <\n"
        "float cube = {{3}}, float square = {{2}}, float c = {{0.044715}}, float k = {{0.8}}> {{\n"
        "[f] float[37,130] f = Cast <to: int = 1> (x)\n[u] float[37,130] u = Pow (f, cube)\n"
        "[v] float[37,130] v = Mul (u, c)\n[a] float[37,130] a = Add (f, v)\n"
        "[s] float[37,130] s = Mul (a, k)\n[t] float[37,130] t = Tanh (s)\n"
        "[m] float[37,130] m = Mul (f, t)\n[y] {0}[37,130] y = Cast <to: int = {1}> (m)\n"
        "[p] {0}[37,130] p = Softmax (y)\n"
        "[d] float[37,130] d = Cast <to: int = 1> (dy)  # role=backward\n"
        "[e] float[37,130] e = Mul (d, t)  # role=backward\n"
        "[g] float[37,130] g = Mul (d, f)  # role=backward\n"
        "[h] float[37,130] h = ai.halfnote.TanhGrad (g, t)  # role=backward\n"
        "[w] float[37,130] w = Pow (f, square)  # role=backward\n"
        "[z] float[37,130] z = Mul (h, w)  # role=backward\n"
        "[dx] float[37,130] dx = Add (e, z)  # role=backward\n}}",
        type, type[0] == 'b' ? 16 : 10));
    expect_same_bits(model, {row_of("recompute-pointwise"), row_of("fuse-pointwise")});
    EXPECT_EQ(count(model, "Pointwise"), 2u);
    for (NodeId node : model.graph.nodes()) EXPECT_EQ(model.graph.outputs(node).size(), 1u);
  }
}

TEST(FusePointwise, ChangesNoBitOfDropoutsAndTheirGradients) {
  for (const char* type : {"float", "bfloat16", "float16"}) {
    SCOPED_TRACE(type);
    Model model = model_of(fmt::format(
        "main ({0}[37,130] x, {0}[37,130] dy, {0}[130] bias, {0}[37,130] r) => ({0}[37,130] y, "
        "{0}[37,130] dx) <int64 seed = {{77}}, int64 step = {{3}}> {{\n"
        "[a] {0}[37,130] a = Add (bias, x)\n[e] {0}[37,130] e = Gelu (a)\n"
        "[d] {0}[37,130] d = ai.halfnote.Dropout <ratio = 0.3, node = 4> (e, seed, step)\n"
        "[y] {0}[37,130] y = Add (d, r)\n"
        "[g] {0}[37,130] g = ai.halfnote.Dropout <ratio = 0.3, node = 4> (dy, seed, step)  "
        "# role=backward\n"
        "[dx] {0}[37,130] dx = ai.halfnote.GeluGrad (g, a)  # role=backward\n}}",
        type));
    expect_same_bits(model, {row_of("recompute-pointwise"), row_of("fuse-pointwise")});
    EXPECT_EQ(count(model, "Dropout"), 0u);
    EXPECT_LE(model.graph.nodes().size(), 2u);
  }
}

TEST(FusePointwise, CutsLongChains) {
  std::string text = "main (float[5] x0) => (float[5] x100) {\n";
  for (int i = 0; i < 100; ++i)
    text += fmt::format("float[5] x{} = {} (x{})\n", i + 1, i % 2 == 0 ? "Neg" : "Abs", i);
  Model model = model_of(text + "}");
  expect_same_bits(model);
  EXPECT_GE(count(model, "Pointwise"), 4u);
  EXPECT_LE(model.graph.nodes().size(), 8u);
}

}  // namespace
}  // namespace halfnote::test
