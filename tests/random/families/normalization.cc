// Normalizations and softmax.
#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

/// A weight near 1, as scales are.
Expr scale(Growth& g, const Shape& shape) {
  const Expr offset = g.weight(shape);
  return g.chance(70) ? offset : g.op("Add", {offset, g.constant_of(Tensor::scalar(1.0f))});
}

void softmax(Growth& g) {
  static constexpr const char* kOps[] = {"Softmax",    "LogSoftmax", "Softmax", "Softmax",
                                         "LogSoftmax", "Softmax",    "Hardmax"};
  const Expr x = g.any(1, 4);
  const int rank = x.rank();
  g.keep(g.op(g.one_of(kOps), {x}, {{"axis", int64_t{g.pick(2 * rank) - rank}}}));
}

void layer(Growth& g) {
  const Expr x = g.any(1, 4);
  const Shape s = g.shape(x);
  const int axis =
      g.chance(70) ? static_cast<int>(s.size()) - 1 : g.pick(static_cast<int>(s.size()));
  const Shape lines(s.begin() + axis, s.end());
  std::vector<Expr> operands = {x, scale(g, lines)};
  const bool rms = g.chance(30);
  if (!rms && g.chance(70)) operands.push_back(g.weight(lines));
  g.keep(g.op(rms ? "RMSNormalization" : "LayerNormalization", operands,
              {{"axis", int64_t{axis}}, {"epsilon", 0.0625f}}));
}

void of_channels(Growth& g) {
  const Expr x = g.any(3, 4);
  const int64_t channels = g.shape(x)[1];
  if (g.chance(40)) {
    return g.keep(g.op("InstanceNormalization", {x, scale(g, {channels}), g.weight({channels})},
                       {{"epsilon", 0.0625f}}));
  }
  const int64_t groups = channels % 2 == 0 && channels > 0 && g.chance(50) ? 2 : 1;
  g.keep(g.op("GroupNormalization", {x, scale(g, {channels}), g.weight({channels})},
              {{"num_groups", groups}, {"epsilon", 0.0625f}}));
}

void of_all_but_channels(Growth& g) {
  const Expr x = g.any(2, 4);
  Attributes attributes;
  if (x.rank() != 4 || g.chance(50)) attributes.set("axes", std::vector<int64_t>{0, x.rank() - 1});
  // The op divides by the deviation and 1e-9: what is constant would be 0/0 but for rounding.
  const Expr noise = g.constant_of(g.numbers(g.shape(x), 1.0));
  g.keep(g.op("MeanVarianceNormalization", {g.op("Add", {x, noise})}, attributes));
}

void batch(Growth& g) {
  const Expr x = g.any(2, 4);
  const int64_t channels = g.shape(x)[1];
  const Expr mean = g.constant({channels});
  const Expr variance = g.constant_of(Tensor::full(DType::kF32, {channels}, 0.75));
  const std::vector<Expr> operands = {x, scale(g, {channels}), g.weight({channels}), mean,
                                      variance};
  const bool training = g.chance(60);
  const auto normalized = [&](const Expr& of) {
    std::vector<Expr> of_it = operands;
    of_it[0] = of;
    return g.ops("BatchNormalization", of_it, training ? 3 : 1,
                 {{"training_mode", int64_t{training}}, {"epsilon", 0.0625f}})[0];
  };
  if (g.chance(60)) return g.keep(normalized(x));
  // As a residual block with a projection ends.
  const Expr sum = g.op("Add", {normalized(x), normalized(g.op("Tanh", {x}))});
  g.keep(g.chance(50) ? g.op("Relu", {sum}) : sum);
}

void other(Growth& g) {
  const Expr x = g.any(1, 4);
  if (x.rank() == 4 && g.chance(50)) {
    return g.keep(g.op("LRN", {x}, {{"size", int64_t{3}}, {"alpha", 0.5f}}));
  }
  const Expr away = g.op("Add", {g.op("Abs", {x}), g.constant_of(Tensor::scalar(0.25f))});
  g.keep(g.op("LpNormalization", {away},
              {{"axis", int64_t{g.pick(x.rank())}}, {"p", int64_t{g.between(1, 2)}}}));
}

}  // namespace

void grow_normalization(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {
      softmax, softmax, layer, layer, of_channels, batch, batch, other, of_all_but_channels};
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
