// Elementwise nodes: one operand, several with broadcasting, selections.
#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

void one_operand(Growth& g) {
  static constexpr const char* kOps[] = {
      "Relu",     "Neg",       "Abs",  "Tanh", "Sigmoid", "Softplus", "Exp",  "Erf",
      "Softsign", "HardSwish", "Mish", "Sin",  "Cos",     "Atan",     "Sign", "Floor",
      "Identity", "Round",     "Selu", "Ceil", "Asinh",   "Sinh",     "Cosh"};
  g.keep(g.op(g.one_of(kOps), {g.any()}));
}

void with_attribute(Growth& g) {
  const Expr x = g.any();
  switch (g.pick(7)) {
    case 0:
      return g.keep(g.op("LeakyRelu", {x}, {{"alpha", 0.125f}}));
    case 1:
      return g.keep(g.op("Elu", {x}, {{"alpha", 1.5f}}));
    case 2:
      return g.keep(g.op("Celu", {x}, {{"alpha", 0.5f}}));
    case 3:
      return g.keep(g.op("HardSigmoid", {x}, {{"alpha", 0.25f}, {"beta", 0.5f}}));
    case 4:
      return g.keep(g.op("ThresholdedRelu", {x}, {{"alpha", 0.25f}}));
    case 5:
      return g.keep(
          g.op("Gelu", {x}, {{"approximate", std::string(g.chance(50) ? "tanh" : "none")}}));
    default:
      return g.keep(g.op("Swish", {x}, {{"alpha", g.chance(50) ? 1.0f : 1.75f}}));
  }
}

/// Log, Sqrt, Reciprocal and Pow of what is above 0.
void of_positive(Growth& g) {
  const Expr positive = g.op("Add", {g.op("Abs", {g.any()}), g.constant_of(Tensor::scalar(0.5f))});
  switch (g.pick(4)) {
    case 0:
      return g.keep(g.op("Log", {positive}));
    case 1:
      return g.keep(g.op("Sqrt", {positive}));
    case 2:
      return g.keep(g.op("Reciprocal", {positive}));
    default: {
      static constexpr float kPowers[] = {0.5f, 1.0f, 1.5f, 2.0f, 3.0f, -1.0f};
      return g.keep(g.op("Pow", {positive, g.constant_of(Tensor::scalar(g.one_of(kPowers)))}));
    }
  }
}

/// Where the function is defined and its slope is tame.
void of_bounded(Growth& g) {
  static constexpr const char* kOps[] = {"Acos", "Asin", "Atanh", "Tan"};
  const Expr x = g.any();
  if (g.chance(20)) {
    const Expr above = g.op("Add", {g.op("Abs", {x}), g.constant_of(Tensor::scalar(1.25f))});
    return g.keep(g.op("Acosh", {above}));
  }
  const Expr half = g.op("Mul", {g.op("Tanh", {x}), g.constant_of(Tensor::scalar(0.75f))});
  g.keep(g.op(g.one_of(kOps), {half}));
}

/// What jumps, or hands its gradient on as it is.
void with_jumps(Growth& g) {
  const Expr x = g.any();
  switch (g.pick(4)) {
    case 0:
      return g.keep(g.op("Shrink", {x}, {{"lambd", 0.25f}, {"bias", 0.125f}}));
    case 1:
      return g.keep(g.op("Mod", {x, g.constant_of(Tensor::scalar(0.75f))}, {{"fmod", int64_t{1}}}));
    case 2:
      return g.keep(g.op("CastLike", {x, g.constant({1})}));
    default: {  // fake quantization
      const Expr scale = g.constant_of(Tensor::scalar(0.0625f));
      const Expr zero = g.constant_of(Tensor::scalar<int8_t>(0));
      const Expr whole = g.op("QuantizeLinear", {x, scale, zero});
      return g.keep(g.op("DequantizeLinear", {whole, scale, zero}));
    }
  }
}

/// A shape that broadcasts to or with `to`.
Shape partner(Growth& g, const Shape& to) {
  if (g.chance(25)) return to;
  Shape shape(to.begin() + (to.empty() ? 0 : g.pick(static_cast<int>(to.size()))), to.end());
  for (int64_t& dim : shape) {
    if (g.chance(30)) dim = 1;
  }
  if (g.chance(10)) return {};
  if (g.chance(10) && shape.size() == to.size() && to.size() < 5) {
    shape.insert(shape.begin(), 1 + g.pick(3));
  }
  return shape;
}

void two_operands(Growth& g) {
  static constexpr const char* kOps[] = {"Add", "Sub", "Mul", "Max", "Min", "Add", "Mul", "PRelu"};
  const Expr x = g.any();
  const char* op = g.one_of(kOps);
  Expr y = g.like(partner(g, g.shape(x)));
  if (std::string_view(op) != "PRelu" && g.chance(30)) return g.keep(g.op(op, {y, x}));
  g.keep(g.op(op, {x, y}));
}

void quotient(Growth& g) {
  const Expr x = g.any();
  const Expr y = g.like(partner(g, g.shape(x)));
  const Expr below = g.op("Add", {g.op("Mul", {y, y}), g.constant_of(Tensor::scalar(0.75f))});
  g.keep(g.op("Div", {x, below}));
}

void several_operands(Growth& g) {
  static constexpr const char* kOps[] = {"Sum", "Mean", "Max", "Min"};
  const Expr x = g.any();
  std::vector<Expr> operands = {x};
  for (int i = g.between(0, 3); i > 0; --i) operands.push_back(g.like(partner(g, g.shape(x))));
  g.keep(g.op(g.one_of(kOps), operands));
}

/// The same value twice or three times in one node.
void of_itself(Growth& g) {
  static constexpr const char* kOps[] = {"Add", "Mul", "Sub", "Max", "Sum"};
  const Expr x = g.any();
  g.keep(g.op(g.one_of(kOps), {x, x}));
}

void bounds(Growth& g) {
  const Expr x = g.any();
  const Expr low = g.chance(70) ? g.constant_of(Tensor::scalar(-0.625f)) : g.builder().none();
  const Expr high = g.chance(70) ? g.constant_of(Tensor::scalar(0.875f)) : g.builder().none();
  g.keep(g.op("Clip", {x, low, high}));
}

void selection(Growth& g) {
  static constexpr const char* kTests[] = {"Greater", "Less", "GreaterOrEqual", "LessOrEqual"};
  const Expr x = g.any();
  const Expr test = g.op(g.one_of(kTests), {x, g.like(partner(g, g.shape(x)))});
  const Expr condition = g.chance(30) ? g.op("Not", {test}) : test;
  g.keep(g.op("Where", {condition, g.like(partner(g, g.shape(x))), x}));
}

/// A chain of cheap nodes, the food of fusion.
void chain(Growth& g) {
  static constexpr const char* kOps[] = {"Add", "Mul", "Sub"};
  static constexpr const char* kThen[] = {"Tanh", "Relu", "Sigmoid", "Neg", "Gelu", "Exp", "Erf"};
  Expr x = g.any();
  for (int i = g.between(2, 4); i > 0; --i) {
    x = g.op(g.one_of(kOps), {x, g.like(partner(g, g.shape(x)))});
    if (g.chance(60)) x = g.op(g.one_of(kThen), {x});
    if (g.chance(20)) g.keep(x);
  }
  g.keep(x);
}

void cast_there_and_back(Growth& g) {
  const Expr low = g.op("Cast", {g.any()}, {{"to", static_cast<int64_t>(DType::kF64)}});
  g.keep(g.op("Cast", {low}, {{"to", static_cast<int64_t>(DType::kF32)}}));
}

}  // namespace

void grow_elementwise(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {
      of_bounded,   with_jumps,   one_operand, one_operand,        with_attribute, of_positive,
      two_operands, two_operands, quotient,    several_operands,   of_itself,      bounds,
      selection,    chain,        chain,       cast_there_and_back};
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
