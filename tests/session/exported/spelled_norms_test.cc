// Normalizations that a model spells out train as one node (find-norms) as they do node by node.
#include <cmath>
#include <limits>

#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

struct SpelledNorm {
  const char* op;        // what becomes of it
  const char* gradient;  // and of its gradient
  const char* text;
};

/// A layer, the norm with its parameters w and b, a layer.
const SpelledNorm kSpelled[] = {
    {"RMSNormalization", "ai.halfnote.RMSNormalizationGrad", R"(
g (float[4,6] x) => (float[4,3] y) <
  float[6,8] first, float[8] w = {0.5, 1, 1.5, 2, -1, 0.25, 1.25, 0.75}, float[8,3] last,
  float two = {2}, float eps = {0.00001}, float one = {1}, int64[1] axes = {-1}> {
  h = MatMul (x, first)
  s = Pow (h, two)
  m = ReduceMean (s, axes)
  a = Add (m, eps)
  q = Sqrt (a)
  r = Div (one, q)
  n = Mul (h, r)
  z = Mul (w, n)
  y = MatMul (z, last)
})"},
    {"LayerNormalization", "ai.halfnote.LayerNormalizationGrad", R"(
g (float[4,6] x) => (float[4,3] y) <
  float[6,8] first, float[8] w = {0.5, 1, 1.5, 2, -1, 0.25, 1.25, 0.75},
  float[8] b = {0.1, 0.2, -0.3, 0.4, 0, 0, 0.5, -0.1}, float[8,3] last,
  float two = {2}, float eps = {0.00001}, int64[1] axes = {-1}> {
  h = MatMul (x, first)
  u = ReduceMean (h, axes)
  d = Sub (h, u)
  s = Pow (d, two)
  m = ReduceMean (s, axes)
  a = Add (m, eps)
  q = Sqrt (a)
  n = Div (d, q)
  z = Mul (w, n)
  t = Add (z, b)
  y = MatMul (t, last)
})"},
    {"GroupNormalization", "ai.halfnote.GroupNormalizationGrad", R"(
g (float[4,6] x) => (float[4,3] y) <
  float[6,8] first, float[4,1] w = {0.5, 1, 1.5, 2}, float[4] b = {0.1, 0.2, -0.3, 0.4},
  float[8,3] last, int64[3] image = {0, 4, 2},
  int64[3] groups = {0, 2, -1}, int64[1] behind = {1}, int64[2] flat = {0, 8}> {
  h = MatMul (x, first)
  i = Reshape (h, image)
  v = Reshape (i, groups)
  ones = Constant <value_floats: floats = [1.0, 1.0]> ()
  zeros = Constant <value_floats: floats = [0.0, 0.0]> ()
  n = InstanceNormalization <epsilon: float = 0.001> (v, ones, zeros)
  k = Reshape (n, image)
  z = Mul (k, w)
  c = Unsqueeze (b, behind)
  t = Add (z, c)
  f = Reshape (t, flat)
  y = MatMul (f, last)
})"},
};

/// `first` and `last` are drawn.
Model spelled_model(const SpelledNorm& norm) {
  std::string text = "<ir_version: 10, opset_import: [\"\" : 23]>" + std::string(norm.text);
  const auto draw = [&](const std::string& place, const Shape& shape, uint64_t seed) {
    const Tensor tensor = uniform(shape, seed);
    std::string numbers;
    for (int64_t i = 0; i < tensor.size(); ++i) {
      numbers += (i > 0 ? ", " : "") + std::to_string(tensor.at_as_double(i));
    }
    text.insert(text.find(place) + place.size(), " = {" + numbers + "}");
  };
  draw("float[6,8] first", {6, 8}, 1);
  draw("float[8,3] last", {8, 3}, 2);
  return parse_model(text, "norm.onnxtxt");
}

class SpelledNorms : public testing::TestWithParam<SpelledNorm> {};

CompileOptions steep(bool finds, DType precision) {
  CompileOptions options = options_for("sgd", precision);
  options.train.optimizer.lr = 1.0f;
  if (!finds) options.skip_passes = {"find-norms"};
  return options;
}

/// At a rate of 1 a weight moves by its gradient.
void expect_same_gradients(const SpelledNorm& norm, DType precision, double bound) {
  const Model model = spelled_model(norm);
  Session one = reference_session(model, steep(true, precision));
  Session apart = reference_session(model, steep(false, precision));
  const std::vector<Tensor> batch = mlp_batch(4, 3);
  EXPECT_NEAR(one.step(batch).loss, apart.step(batch).loss, bound);
  bool moved = false;
  for (const char* name : {"first", "w", "b", "last"}) {
    if (one.state().find(name) == nullptr) continue;
    const Tensor got = state(one, name), wanted = state(apart, name);
    ASSERT_EQ(got.shape(), wanted.shape()) << name;
    for (int64_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got.at_as_double(i), wanted.at_as_double(i), bound) << name << " at " << i;
    }
    moved = true;
  }
  EXPECT_TRUE(moved);
}

TEST_P(SpelledNorms, BecomeOneNodeEachWay) {
  const Model model = compile_model(spelled_model(GetParam()), steep(true, DType::kF32)).model;
  const Graph& step = model.training.at(0).graph;
  EXPECT_EQ(find_nodes(step, GetParam().op).size(), 1u);
  EXPECT_EQ(find_nodes(step, GetParam().gradient).size(), 1u);
  EXPECT_TRUE(find_nodes(step, "Sqrt").empty());
  EXPECT_TRUE(find_nodes(step, "InstanceNormalization").empty());
}

TEST_P(SpelledNorms, HaveTheGradientsOfTheirSpelling) {
  // Numbers up to 4, sums of at most 8 of them, and a dozen operators in a row.
  expect_same_gradients(GetParam(), DType::kF32, 256 * 0x1p-24);
}

/// bf16 holds X and Y of the one node, the statistics are f32 in both.
TEST_P(SpelledNorms, StayF32InsideUnderBf16) {
  // A dozen roundings to bf16 of numbers up to 4.
  expect_same_gradients(GetParam(), DType::kBF16, 48 * 0x1p-9);
  const Model model = compile_model(spelled_model(GetParam()), steep(true, DType::kBF16)).model;
  const Graph& step = model.training.at(0).graph;
  EXPECT_TRUE(runs_in(step, GetParam().op, DType::kF32));
}

INSTANTIATE_TEST_SUITE_P(All, SpelledNorms, testing::ValuesIn(kSpelled),
                         [](const auto& row) { return std::string(row.param.op); });

}  // namespace
}  // namespace halfnote::test
