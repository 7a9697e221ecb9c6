// Gradients of Fourier transforms against central differences; STFT as it is lowered against its
// kernel.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/onnx/schema.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_ops.h"
#include "runtime/core/evaluate.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

Tensor f64_values(const Shape& shape, uint64_t seed) {
  return random_tensor(DType::kF64, shape, seed);
}

Tensor scalar_of(int64_t value) { return Tensor::scalar(value); }

struct Spectral {
  const char* name;
  Shape x;
  int64_t inverse, one_sided, axis;
  int64_t length;  // 0: not given
};

// Even and odd lengths; a last dim of 1 is real, one of 2 complex.
const Spectral kTransforms[] = {
    {"real", {2, 6, 1}, 0, 0, 1, 0},
    {"complex", {2, 5, 2}, 0, 0, 1, 0},
    {"complex, another axis", {3, 2, 4, 2}, 0, 0, -3, 0},
    {"inverse", {2, 6, 2}, 1, 0, 1, 0},
    {"inverse of real", {2, 5, 1}, 1, 0, 1, 0},
    {"one-sided, even", {2, 6, 3, 1}, 0, 1, 1, 0},
    {"one-sided, odd", {2, 5, 1}, 0, 1, 1, 0},
    {"one-sided inverse", {2, 4, 2}, 1, 1, 1, 0},
    {"one-sided inverse, odd", {2, 4, 2}, 1, 1, 1, 7},
    {"one-sided inverse, cut", {2, 6, 2}, 1, 1, 1, 6},
    {"one-sided inverse, padded", {2, 3, 2}, 1, 1, 1, 8},
    {"cut", {2, 7, 1}, 0, 0, 1, 4},
    {"padded", {2, 3, 2}, 0, 0, 1, 5},
    {"cut, one-sided", {2, 7, 1}, 0, 1, 1, 5},
    {"padded inverse", {2, 3, 2}, 1, 0, 1, 4},
};

GradientCase case_of(const Spectral& s) {
  const Tensor length = s.length > 0 ? scalar_of(s.length) : Tensor{};
  return {s.name,
          "DFT",
          {{"inverse", s.inverse}, {"onesided", s.one_sided}},
          {f64_values(s.x, 3), length, scalar_of(s.axis)}};
}

TEST(SpectralGradient, Dft) {
  for (const Spectral& transform : kTransforms) expect_gradient(case_of(transform));
}

TEST(SpectralGradient, NeedsAKnownLength) {
  GradientCase test = case_of({"computed", {2, 7, 1}, 0, 0, 1, 4});
  test.computed = {1};
  EXPECT_THROW(rule_gradients(test, {f64_values({2, 4, 2}, 4)}), Error);
}

TEST(SpectralGradient, Stft) {
  const Tensor real = f64_values({2, 11, 1}, 1), complex = f64_values({1, 9, 2}, 2),
               window = f64_values({4}, 3);
  expect_gradient({"windowed", "STFT", {}, {real, scalar_of(3), window}, {0, 2}});
  expect_gradient({"length", "STFT", {}, {real, scalar_of(2), Tensor{}, scalar_of(5)}, {0}});
  for (int64_t one_sided : {0, 1}) {
    expect_gradient({"complex",
                     "STFT",
                     {{"onesided", one_sided}},
                     {complex, scalar_of(2), window, scalar_of(4)},
                     {0, 2}});
  }
  expect_gradient({"one frame", "STFT", {}, {real, scalar_of(3)}, {0}});
}

/// The default of `onesided` is 1, which the library's own inference does not know.
TEST(StftInference, TakesTheDefaultOfTheSchema) {
  Graph graph;
  const ValueId x =
      graph.add_input(graph.main(), "x", ValueType::tensor(DType::kF32, {Dim(2), Dim(12), Dim(1)}));
  const ValueId step = graph.add_initializer("step", scalar_of(3));
  const ValueId length = graph.add_initializer("length", scalar_of(4));
  const NodeId node = graph.create({"STFT", {x, step, {}, length}, {}}, {"y"}, graph.end());
  for (int64_t opset : {17, 23}) {
    infer_with_schema(graph, node, opset);
    EXPECT_EQ(to_string(graph.value(graph.output(node)).type), "float[2,3,3,2]");
  }
}

/// STFT of a signal of `dim` elements in frames of 4, one every 3.
Graph stft_graph(Dim dim) {
  Graph graph;
  const ValueId x =
      graph.add_input(graph.main(), "x", ValueType::tensor(DType::kF64, {Dim(2), dim, Dim(1)}));
  const ValueId step = graph.add_initializer("step", scalar_of(3));
  const ValueId window = graph.add_initializer("window", f64_values({4}, 3));
  const NodeId node =
      graph.create({"STFT", {x, step, window}, {{"onesided", int64_t{1}}}}, {"y"}, graph.end());
  infer_node(graph, node);
  graph.add_output(graph.main(), graph.output(node, 0));
  return graph;
}

TEST(StftLowering, GivesWhatTheKernelGives) {
  const Tensor x = f64_values({2, 12, 1}, 5);
  Graph whole = stft_graph(Dim(12)), lowered = stft_graph(Dim(12));
  EXPECT_TRUE(lower_graph(lowered, infer_node));
  const Tensor want = evaluate(whole, {x})[0], got = evaluate(lowered, {x})[0];
  ASSERT_EQ(got.shape(), want.shape());
  // The same sums in f64; only the window's product is rounded on its own.
  for (int64_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.at_as_double(i), want.at_as_double(i), 1e-14);
}

TEST(StftLowering, NeedsASignalOfKnownLength) {
  Graph graph = stft_graph(Dim::named("length"));
  EXPECT_THROW(lower_graph(graph, infer_node), Error);
}

}  // namespace
}  // namespace halfnote::test
