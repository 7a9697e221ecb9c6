// The optimizers of ai.onnx.preview.training, written in ONNX's ops. Operands are R (rate), T
// (updates so far), then all parameters X, all gradients G and all states; results all X', then all
// new states. With Gr = norm_coefficient·X + G:
//   Momentum  V' = alpha·V + (T > 0 ? beta : 1)·Gr;  X' = X − R·V', nesterov: X − R·(Gr + alpha·V')
//   Adagrad   H' = H + Gr²;  X' = X − R/(1 + T·decay_factor)·Gr/(√H' + epsilon)
//   Adam      V' = alpha·V + (1 − alpha)·Gr;  H' = beta·H + (1 − beta)·Gr²
//             X' = (1 − norm_coefficient_post)·(X − R'·V'/(√H' + epsilon)),
//             R' = R·√(1 − beta^T)/(1 − alpha^T) where T > 0, else R
#include "passes/foreign/parts.h"

namespace halfnote::foreign {
namespace {

/// The operands of parameter `i` of `count`: X, G and the states.
struct Parameter {
  Expr x, gradient;
  std::vector<Expr> states;
};

/// A gradient or state that only broadcasts to its parameter is another parameter's.
void check_shape(LowerContext& c, const Expr& x, const Expr& other) {
  const auto &want = x.type().shape, &got = other.type().shape;
  if (!want || !got || !is_concrete(*want) || !is_concrete(*got) || *want == *got) return;
  refuse(c, "a gradient or state has another shape than its parameter: expected " +
                to_string(*want) + ", got " + to_string(*got));
}

std::vector<Parameter> parameters_of(LowerContext& c, size_t states) {
  const size_t kinds = 2 + states;
  if (c.inputs.size() < 2 + kinds || (c.inputs.size() - 2) % kinds != 0) {
    refuse(c, "operands are not R, T and " + std::to_string(kinds) + " tensors for each parameter");
  }
  const size_t count = (c.inputs.size() - 2) / kinds;
  const double decay = c.attributes().get_float("norm_coefficient", 0);
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < count; ++i) {
    Parameter p{require_input(c, 2 + i), require_input(c, 2 + count + i), {}};
    check_shape(c, p.x, p.gradient);
    if (decay != 0) p.gradient = p.x * decay + p.gradient;
    for (size_t s = 0; s < states; ++s) {
      p.states.push_back(require_input(c, 2 + (2 + s) * count + i));
      check_shape(c, p.x, p.states.back());
    }
    parameters.push_back(std::move(p));
  }
  return parameters;
}

/// All X', then all first states, then all second ones.
Results in_order(const std::vector<Results>& by_parameter) {
  Results results;
  for (size_t kind = 0; kind < by_parameter.front().size(); ++kind) {
    for (const Results& one : by_parameter) results.push_back(one[kind]);
  }
  return results;
}

Expr is_positive(LowerContext& c, Expr t) {
  return c.b.op("Greater", {t, c.b.scalar(DType::kI64, 0)});
}

/// R of the type of a parameter.
Expr rate_for(LowerContext& c, const Parameter& p, Expr rate) {
  return c.b.cast(rate, p.x.dtype());
}

}  // namespace

Results preview_momentum(LowerContext& c) {
  const Expr rate = require_input(c, 0), t = require_input(c, 1);
  const double alpha = c.attributes().get_float("alpha", 0);
  const double beta = c.attributes().get_float("beta", 0);
  const std::string mode = c.attributes().get_string("mode", "standard");
  if (mode != "standard" && mode != "nesterov") refuse(c, "mode is neither standard nor nesterov");
  std::vector<Results> results;
  for (const Parameter& p : parameters_of(c, 1)) {
    const DType dtype = p.x.dtype();
    const Expr share =
        c.b.op("Where", {is_positive(c, t), c.b.scalar(dtype, beta), c.b.scalar(dtype, 1)});
    const Expr v = p.states[0] * alpha + share * p.gradient;
    const Expr direction = mode == "nesterov" ? p.gradient + v * alpha : v;
    results.push_back({p.x - rate_for(c, p, rate) * direction, v});
  }
  return in_order(results);
}

Results preview_adagrad(LowerContext& c) {
  const Expr rate = require_input(c, 0), t = require_input(c, 1);
  const double decay = c.attributes().get_float("decay_factor", 0);
  const double epsilon = c.attributes().get_float("epsilon", 1e-6f);
  std::vector<Results> results;
  for (const Parameter& p : parameters_of(c, 1)) {
    const Expr slowed = rate_for(c, p, rate) / (c.b.cast(t, p.x.dtype()) * decay + 1.0);
    const Expr h = p.states[0] + p.gradient * p.gradient;
    const Expr length = c.b.op("Sqrt", {h}) + epsilon;
    results.push_back({p.x - slowed * p.gradient / length, h});
  }
  return in_order(results);
}

Results preview_adam(LowerContext& c) {
  const Expr rate = require_input(c, 0), t = require_input(c, 1);
  const double alpha = c.attributes().get_float("alpha", 0.9f);
  const double beta = c.attributes().get_float("beta", 0.999f);
  const double epsilon = c.attributes().get_float("epsilon", 1e-6f);
  const double after = c.attributes().get_float("norm_coefficient_post", 0);
  // Bias corrections in f64, rounded once.
  const Expr steps = c.b.cast(t, DType::kF64);
  const auto rest = [&](double base) {
    return 1.0 - c.b.op("Pow", {c.b.scalar(DType::kF64, base), steps});
  };
  const Expr corrected = c.b.cast(rate, DType::kF64) * c.b.op("Sqrt", {rest(beta)}) / rest(alpha);
  std::vector<Results> results;
  for (const Parameter& p : parameters_of(c, 2)) {
    const Expr adjusted = c.b.op(
        "Where", {is_positive(c, t), c.b.cast(corrected, p.x.dtype()), rate_for(c, p, rate)});
    const Expr v = p.states[0] * alpha + p.gradient * (1 - alpha);
    const Expr h = p.states[1] * beta + p.gradient * (1 - beta) * p.gradient;
    const Expr x = p.x - adjusted * v / (c.b.op("Sqrt", {h}) + epsilon);
    results.push_back({after == 0 ? x : x * (1 - after), v, h});
  }
  return in_order(results);
}

}  // namespace halfnote::foreign
