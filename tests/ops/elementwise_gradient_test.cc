// Gradient rules of the elementwise ops against central differences in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "compiler/ir/model.h"
#include "compiler/ops/families.h"
#include "passes/canonical/infer_shapes.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

constexpr DType kF64 = DType::kF64;

void expect_elementwise(const GradientCase& test) {
  expect_scale_rule(test);
  expect_gradient(test, Dims::kFixed);
  expect_gradient(test, Dims::kSymbolic);
}

/// Random numbers in [low, high), pushed away from the kinks.
Tensor smooth_points(Shape shape, uint64_t seed, double low, double high,
                     const std::vector<double>& kinks) {
  Tensor points = random_tensor(kF64, std::move(shape), seed, low, high).deep_copy();
  for (double& x : points.mutable_data<double>()) {
    for (double kink : kinks) {
      if (std::fabs(x - kink) < 0.01) x = kink + (x < kink ? -0.01 : 0.01);
    }
  }
  return points;
}

/// A unary op on [low, high).
struct Unary {
  const char* op;
  double low = -3, high = 3;
  Attributes attributes = {};
  std::vector<double> kinks = {};
};

const Unary kUnary[] = {
    {"Abs", -3, 3, {}, {0}},
    {"Acos", -0.9, 0.9},
    {"Acosh", 1.1, 9},
    {"Asin", -0.9, 0.9},
    {"Asinh"},
    {"Atan"},
    {"Atanh", -0.9, 0.9},
    {"Ceil", -3, 3, {}, {-3, -2, -1, 0, 1, 2, 3}},
    {"Celu", -3, 3, {{"alpha", 0.7f}}, {0}},
    {"Cos"},
    {"Cosh"},
    {"Elu", -3, 3, {{"alpha", 1.3f}}, {0}},
    {"Elu", -3, 3, {{"alpha", -0.5f}}, {0}},
    {"Erf"},
    {"Exp"},
    {"Floor", -3, 3, {}, {-3, -2, -1, 0, 1, 2, 3}},
    {"Gelu"},
    {"Gelu", -3, 3, {{"approximate", std::string("tanh")}}},
    {"HardSigmoid", -4, 4, {}, {-2.5, 2.5}},
    {"HardSigmoid", -4, 4, {{"alpha", 0.5f}, {"beta", 0.25f}}, {-0.5, 1.5}},
    {"HardSwish", -5, 5, {}, {-3, 3}},
    {"LeakyRelu", -3, 3, {}, {0}},
    {"LeakyRelu", -3, 3, {{"alpha", 0.1f}}, {0}},
    {"LeakyRelu", -3, 3, {{"alpha", -0.1f}}, {0}},
    {"Log", 0.1, 5},
    {"Mish", -5, 5},
    {"Neg"},
    {"Reciprocal", 0.2, 4},
    {"Relu", -3, 3, {}, {0}},
    {"Round", -3, 3, {}, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}},
    {"Selu", -3, 3, {}, {0}},
    {"Shrink", -2, 2, {{"lambd", 0.7f}, {"bias", 0.2f}}, {-0.7, 0.7}},
    {"Sigmoid"},
    {"Sign", -3, 3, {}, {0}},
    {"Sin"},
    {"Sinh"},
    {"Softplus"},
    {"Softsign", -3, 3, {}, {0}},
    {"Sqrt", 0.1, 5},
    {"Tan", -1.2, 1.2},
    {"Tanh"},
    {"ThresholdedRelu", -3, 3, {{"alpha", 0.6f}}, {0.6}},
};

TEST(ElementwiseGradient, Unary) {
  for (const Unary& test : kUnary) {
    for (const Shape& shape : {Shape{}, Shape{17}, Shape{0, 2}, Shape{2, 1, 5}}) {
      expect_elementwise({to_string(shape),
                          test.op,
                          test.attributes,
                          {smooth_points(shape, 5, test.low, test.high, test.kinks)}});
    }
  }
}

/// Two shapes that broadcast.
const std::pair<Shape, Shape> kPairs[] = {
    {{}, {}},         {{3}, {3}},          {{2, 3}, {3}},    {{3}, {2, 3}}, {{2, 3}, {}},
    {{1, 3}, {2, 1}}, {{2, 1, 3}, {5, 1}}, {{0, 3}, {3}},    {{1}, {2, 0}}, {{4, 1}, {1, 1, 7}},
    {{1}, {}},        {{1, 1}, {5}},       {{2, 3}, {1, 1}},
};

TEST(ElementwiseGradient, Binary) {
  for (const char* op : {"Add", "Sub", "Mul", "Div"}) {
    for (const auto& [a, b] : kPairs) {
      expect_elementwise({to_string(a) + to_string(b),
                          op,
                          {},
                          {random_tensor(kF64, a, 1, -2, 2), random_tensor(kF64, b, 2, 0.5, 2)},
                          {0, 1}});
    }
  }
}

TEST(ElementwiseGradient, SameOperandTwice) {
  // Mul(x, x): both gradients are x·dY; autodiff adds them up.
  const Tensor x = random_tensor(kF64, {5}, 1);
  expect_gradient({"square", "Mul", {}, {x, x}, {0, 1}});
}

TEST(ElementwiseGradient, Variadic) {
  for (const char* op : {"Sum", "Mean", "Min", "Max"}) {
    for (const auto& [a, b] : kPairs) {
      // Three ranges of which neighbours overlap: no ties, but no operand always wins.
      expect_elementwise({to_string(a) + to_string(b),
                          op,
                          {},
                          {random_tensor(kF64, a, 1, -2, 1), random_tensor(kF64, b, 2, -1, 2),
                           random_tensor(kF64, {1}, 3, -0.1, 0.1)},
                          {0, 1, 2}});
    }
    expect_elementwise({"one operand", op, {}, {random_tensor(kF64, {2, 3}, 1)}});
  }
}

TEST(ElementwiseGradient, TiesShare) {
  const Tensor x = Tensor::of<double>({3}, {1, 2, 3}), y = Tensor::of<double>({3}, {1, 5, 3});
  const Tensor z = Tensor::of<double>({3}, {1, 0, 0});
  const Tensor dy = Tensor::of<double>({3}, {6, 6, 6});
  const auto got = rule_gradients({"ties", "Max", {}, {x, y, z}, {0, 1, 2}}, {dy});
  EXPECT_TRUE(identical(got[0], Tensor::of<double>({3}, {2, 0, 3})));
  EXPECT_TRUE(identical(got[1], Tensor::of<double>({3}, {2, 6, 3})));
  EXPECT_TRUE(identical(got[2], Tensor::of<double>({3}, {2, 0, 0})));
}

TEST(ElementwiseGradient, MaxLetsNanThrough) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = Tensor::of<double>({2}, {nan, 2}), y = Tensor::of<double>({2}, {1, 1});
  const Tensor dy = Tensor::of<double>({2}, {1, 1});
  const auto got = rule_gradients({"nan", "Max", {}, {x, y}, {0, 1}}, {dy});
  EXPECT_TRUE(std::isnan(got[0].at_as_double(0)));
  EXPECT_EQ(got[0].at_as_double(1), 1);
}

TEST(ElementwiseGradient, PowWithConstantExponent) {
  const Tensor x = random_tensor(kF64, {2, 3}, 1, 0.3, 2);
  for (double exponent : {-1.5, -1.0, 0.0, 0.5, 1.0, 1.7, 2.0, 3.0}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1, 1}}) {
      GradientCase test{
          std::to_string(exponent), "Pow", {}, {x, Tensor::full(kF64, shape, exponent)}};
      test.constants = {1};
      expect_elementwise(test);
    }
    expect_elementwise({"one for each", "Pow", {}, {x, Tensor::full(kF64, {3}, exponent)}, {0, 1}});
  }
}

TEST(ElementwiseGradient, PowWithIntegerExponent) {
  const Tensor x = random_tensor(kF64, {2, 3}, 1, -2, 2);
  for (int64_t exponent : {0, 1, 2, 3, 5}) {
    GradientCase test{std::to_string(exponent), "Pow", {}, {x, Tensor::scalar<int64_t>(exponent)}};
    expect_elementwise(test);
    test.computed = {1};
    expect_elementwise(test);
  }
}

TEST(ElementwiseGradient, PowOfBoth) {
  for (const auto& [a, b] : kPairs) {
    expect_elementwise({to_string(a) + to_string(b),
                        "Pow",
                        {},
                        {random_tensor(kF64, a, 1, 0.3, 2), random_tensor(kF64, b, 2, -2, 2)},
                        {0, 1}});
  }
}

TEST(ElementwiseGradient, PowAtZeroIsNoNan) {
  const Tensor x = Tensor::of<double>({4}, {0, 0, 0, -2});
  const Tensor e = Tensor::of<double>({4}, {0, 1, 2, 3});
  const auto got =
      rule_gradients({"zero", "Pow", {}, {x, e}, {0, 1}}, {Tensor::full(kF64, {4}, 1)});
  EXPECT_TRUE(identical(got[0], Tensor::of<double>({4}, {0, 1, 0, 12})));
  EXPECT_TRUE(identical(got[1], Tensor::of<double>({4}, {0, 0, 0, 0})));
}

TEST(ElementwiseGradient, PRelu) {
  for (const auto& [a, b] : {std::pair<Shape, Shape>{{2, 3}, {3}},
                             {{2, 3}, {1}},
                             {{2, 3, 4}, {3, 1}},
                             {{5}, {5}},
                             {{0, 3}, {3}}}) {
    expect_elementwise({to_string(a) + to_string(b),
                        "PRelu",
                        {},
                        {smooth_points(a, 1, -2, 2, {0}), random_tensor(kF64, b, 2, -0.5, 0.5)},
                        {0, 1}});
  }
}

TEST(ElementwiseGradient, Where) {
  for (const auto& [a, b] : kPairs) {
    for (const Shape& mask : {Shape{}, Shape{1}, a, b}) {
      GradientCase test{to_string(mask) + to_string(a) + to_string(b),
                        "Where",
                        {},
                        {random_ints(DType::kBool, mask, 3, 0, 2), random_tensor(kF64, a, 1),
                         random_tensor(kF64, b, 2)},
                        {1, 2}};
      expect_gradient(test);
      test.computed = {0};
      expect_elementwise(test);
    }
  }
}

TEST(ElementwiseGradient, Clip) {
  const Tensor min = Tensor::scalar<double>(-0.5), max = Tensor::scalar<double>(0.7);
  for (const Shape& shape : {Shape{}, Shape{9}, Shape{0, 2}, Shape{3, 1, 5}}) {
    const Tensor x = smooth_points(shape, 4, -2, 2, {-0.5, 0.7});
    expect_elementwise({"no bound", "Clip", {}, {x}});
    expect_elementwise({"min", "Clip", {}, {x, min}, {0, 1}});
    expect_elementwise({"max", "Clip", {}, {x, Tensor{}, max}, {0, 2}});
    expect_elementwise({"both", "Clip", {}, {x, min, max}, {0, 1, 2}});
    expect_elementwise({"crossed: all is max", "Clip", {}, {x, max, min}, {0, 1, 2}});
  }
}

TEST(ElementwiseGradient, Mod) {
  const Tensor a = random_tensor(kF64, {3, 4}, 1, -5, 5), b = random_tensor(kF64, {4}, 2, 0.7, 1.9);
  const Tensor c = random_tensor(kF64, {3, 1}, 3, -1.9, -0.7);
  const Attributes as_c = {{"fmod", int64_t{1}}};
  expect_elementwise({"positive", "Mod", as_c, {a, b}, {0, 1}});
  expect_elementwise({"negative", "Mod", as_c, {a, c}, {0, 1}});
}

TEST(ElementwiseGradient, CastsConvertBack) {
  const Tensor dy = random_tensor(DType::kF32, {2, 3}, 1);
  const Tensor x = random_tensor(kF64, {2, 3}, 2);
  const Attributes to_f32 = {{"to", static_cast<int64_t>(DType::kF32)}};
  const auto cast = rule_gradients({"to f32", "Cast", to_f32, {x}}, {dy});
  EXPECT_TRUE(identical(cast[0], dy.cast_to(kF64)));
}

TEST(ElementwiseGradient, CastFromIntegersHasNone) {
  const Attributes to_f64 = {{"to", static_cast<int64_t>(kF64)}};
  GradientCase test{"from i64", "Cast", to_f64, {random_ints(DType::kI64, {3}, 1, -5, 5)}};
  test.computed = {0};
  EXPECT_FALSE(rule_gradients(test, {random_tensor(kF64, {3}, 2)})[0].defined());
}

TEST(ElementwiseGradient, EveryRuleIsTested) {
  std::set<std::string_view> tested = {"Add",   "Cast", "Clip",  "Div", "Max", "Mean", "Min",
                                       "Mod",   "Mul",  "PRelu", "Pow", "Sub", "Sum",
                                       "Swish",  // younger than op-set 23: see below
                                       "Where"};
  for (const Unary& test : kUnary) tested.insert(test.op);
  std::set<std::string_view> rules;
  for (const OperatorRow& row : elementwise_rows()) {
    if (row.gradient != nullptr) rules.insert(row.name);
  }
  EXPECT_EQ(rules, tested);
}

/// What the rule of a unary op emits.
struct Emitted {
  std::string op;
  bool reads_x = false;
  Attributes attributes;
};

Emitted emitted_for(const char* op, Attributes attributes) {
  Graph graph;
  const ValueType type = ValueType::tensor(DType::kF32, {Dim(4)});
  const ValueId x = graph.add_input(graph.main(), "x", type);
  const ValueId dy = graph.add_input(graph.main(), "dy", type);
  const NodeId node = graph.create({op, {x}, std::move(attributes)}, 1, graph.end());
  graph.value(graph.output(node)).type = type;
  Builder b(graph, graph.end(), infer_node);
  GradientContext rule{
      b, node, {b.value(x)}, {b.value(graph.output(node))}, {b.value(dy)}, {true}, infer_node};
  find_operator("", op)->gradient(rule);
  const Node& made = graph.node(b.last());
  EXPECT_EQ(made.domain, kHalfnoteDomain);
  EXPECT_EQ(graph.input(b.last(), 0), dy);
  return {made.op, graph.input(b.last(), 1) == x, made.attributes};
}

TEST(ElementwiseGradient, ReadsTheOutputWhereItCan) {
  EXPECT_FALSE(emitted_for("Relu", {}).reads_x);
  EXPECT_FALSE(emitted_for("Tanh", {}).reads_x);
  EXPECT_TRUE(emitted_for("Elu", {{"alpha", 0.5f}}).reads_x);
  EXPECT_TRUE(emitted_for("Softplus", {}).reads_x);

  const Emitted swish = emitted_for("Swish", {{"alpha", 1.5f}});
  EXPECT_EQ(swish.op, "SwishGrad");
  EXPECT_TRUE(swish.reads_x);
  EXPECT_EQ(swish.attributes.get_float("alpha", 0), 1.5f);
}

TEST(ElementwiseGradient, ReadsTheInputOfANegativeSlope) {
  for (const char* op : {"Elu", "LeakyRelu"}) {
    const Emitted made = emitted_for(op, {{"alpha", -0.5f}});
    EXPECT_TRUE(made.reads_x) << op;
    EXPECT_EQ(made.attributes.get_int("from_input", 0), 1) << op;
  }
}

}  // namespace
}  // namespace halfnote::test
