// The derivatives of the unary ops as expressions in standard ONNX ops: the bodies of `<Op>Grad`.
//
// They mirror the formulas of kernels/math/elementwise.h step by step, so that a runtime which
// executes the bodies agrees with our kernels within rounding. `s` is the input X or the output Y
// of the op, as docs/operators.md says (Y is named `y` here).
#pragma once

#include "compiler/ir/builder.h"

namespace halfnote::elementwise::derivative {

inline Expr call(const char* op, Expr x) { return x.builder->op(op, {x}); }
inline Expr call(const char* op, Expr a, Expr b) { return a.builder->op(op, {a, b}); }
inline Expr number(Expr like, double value) { return like.builder->scalar(like.dtype(), value); }
inline Expr greater(Expr a, double b) { return call("Greater", a, number(a, b)); }
inline Expr less(Expr a, double b) { return call("Less", a, number(a, b)); }
inline Expr zero(Expr like) { return number(like, 0); }
/// sqrt((1 − x)(1 + x)): no cancellation near ±1.
inline Expr circle(Expr x) { return call("Sqrt", (1.0 - x) * (1.0 + x)); }

inline Expr abs(Expr dy, Expr x, const Attributes&) {
  return where(greater(x, 0), dy, where(less(x, 0), -dy, x * 0.0));
}
inline Expr acos(Expr dy, Expr x, const Attributes&) { return -dy / circle(x); }
inline Expr acosh(Expr dy, Expr x, const Attributes&) {
  return dy / (call("Sqrt", x - 1.0) * call("Sqrt", x + 1.0));
}
inline Expr asin(Expr dy, Expr x, const Attributes&) { return dy / circle(x); }
inline Expr asinh(Expr dy, Expr x, const Attributes&) { return dy / call("Sqrt", 1.0 + x * x); }
inline Expr atan(Expr dy, Expr x, const Attributes&) { return dy / (1.0 + x * x); }
inline Expr atanh(Expr dy, Expr x, const Attributes&) { return dy / ((1.0 - x) * (1.0 + x)); }
inline Expr celu(Expr dy, Expr x, const Attributes& attributes) {
  const double alpha = attributes.get_float("alpha", 1.0f);
  return where(greater(x, 0), dy, dy * call("Exp", x / alpha));
}
inline Expr cos(Expr dy, Expr x, const Attributes&) { return -dy * call("Sin", x); }
inline Expr cosh(Expr dy, Expr x, const Attributes&) { return dy * call("Sinh", x); }
inline Expr elu(Expr dy, Expr s, const Attributes& attributes) {
  const double alpha = attributes.get_float("alpha", 1.0f);
  const bool from_input = attributes.get_int("from_input", 0) != 0;
  const Expr slope = from_input ? alpha * call("Exp", s) : s + alpha;
  return where(greater(s, 0), dy, dy * slope);
}
inline Expr erf(Expr dy, Expr x, const Attributes&) {
  return dy * 1.1283791670955126 * call("Exp", -x * x);  // 2/sqrt(pi)
}
inline Expr exp(Expr dy, Expr y, const Attributes&) { return dy * y; }

/// ONNX has no erfc: far in the negative tail the cdf is exact only up to the unit roundoff.
inline Expr gelu_exact(Expr dy, Expr x) {
  const Expr cdf = (call("Erf", x * 0.70710678118654752) + 1.0) * 0.5;
  const Expr density = 0.39894228040143268 * call("Exp", x * x * -0.5);  // 1/sqrt(2 pi)
  return dy * (cdf + x * density);
}
inline Expr gelu_tanh(Expr dy, Expr x) {
  const Expr twice_u = 1.5957691216057308 * (x + 0.044715 * x * x * x);
  const Expr twice_slope = 1.5957691216057308 * (1.0 + 3 * 0.044715 * x * x);
  const Expr gate = call("Sigmoid", twice_u);
  return dy * (gate + x * twice_slope * gate * call("Sigmoid", -twice_u));
}
inline Expr gelu(Expr dy, Expr x, const Attributes& attributes) {
  const bool tanh_form = attributes.get_string("approximate", "none") == "tanh";
  return tanh_form ? gelu_tanh(dy, x) : gelu_exact(dy, x);
}

inline Expr hard_sigmoid(Expr dy, Expr x, const Attributes& attributes) {
  const double alpha = attributes.get_float("alpha", 0.2f);
  const double beta = attributes.get_float("beta", 0.5f);
  const Expr y = alpha * x + beta;
  return where(call("And", greater(y, 0), less(y, 1)), alpha * dy, zero(dy));
}
inline Expr hard_swish(Expr dy, Expr x, const Attributes&) {
  const Expr middle = dy * (x / 3.0 + 0.5);
  const Expr right = where(call("GreaterOrEqual", x, number(x, 3)), dy, middle);
  return where(call("LessOrEqual", x, number(x, -3)), zero(dy), right);
}
inline Expr leaky_relu(Expr dy, Expr s, const Attributes& attributes) {
  const double alpha = attributes.get_float("alpha", 0.01f);
  return where(greater(s, 0), dy, alpha * dy);
}
inline Expr log(Expr dy, Expr x, const Attributes&) { return dy / x; }
/// With e = exp(x), n = e² + 2e: tanh(softplus(x)) = n/(n + 2). From 20 on it is 1 in any type.
inline Expr mish(Expr dy, Expr x, const Attributes&) {
  const Expr e = call("Exp", call("Min", x, number(x, 20)));
  const Expr n = e * (e + 2.0);
  const Expr slope = 4.0 * (n + 1.0) / ((n + 2.0) * (n + 2.0));  // 1 − tanh²
  return where(greater(x, 20), dy, dy * (n / (n + 2.0) + x * slope * (e / (1.0 + e))));
}
inline Expr reciprocal(Expr dy, Expr y, const Attributes&) { return -dy * y * y; }
inline Expr relu(Expr dy, Expr y, const Attributes&) { return where(greater(y, 0), dy, zero(dy)); }
inline Expr selu(Expr dy, Expr x, const Attributes& attributes) {
  const double alpha = attributes.get_float("alpha", 1.67326319217681884765625f);
  const double gamma = attributes.get_float("gamma", 1.05070102214813232421875f);
  return dy * where(greater(x, 0), number(x, gamma), number(x, gamma) * alpha * call("Exp", x));
}
inline Expr shrink(Expr dy, Expr x, const Attributes& attributes) {
  const double lambda = attributes.get_float("lambd", 0.5f);
  return where(call("Or", less(x, -lambda), greater(x, lambda)), dy, zero(dy));
}
inline Expr sigmoid(Expr dy, Expr y, const Attributes&) { return dy * y * (1.0 - y); }
inline Expr sin(Expr dy, Expr x, const Attributes&) { return dy * call("Cos", x); }
inline Expr sinh(Expr dy, Expr x, const Attributes&) { return dy * call("Cosh", x); }
inline Expr softplus(Expr dy, Expr x, const Attributes&) { return dy * call("Sigmoid", x); }
inline Expr softsign(Expr dy, Expr x, const Attributes&) {
  const Expr root = 1.0 + call("Abs", x);
  return dy / root / root;
}
inline Expr sqrt(Expr dy, Expr y, const Attributes&) { return dy / (2.0 * y); }
inline Expr swish(Expr dy, Expr x, const Attributes& attributes) {
  const double alpha = attributes.get_float("alpha", 1.0f);
  const Expr scaled = alpha * x;
  const Expr gate = call("Sigmoid", scaled);
  return dy * (gate + scaled * gate * call("Sigmoid", -scaled));
}
inline Expr tan(Expr dy, Expr x, const Attributes&) {
  const Expr c = call("Cos", x);
  return dy / (c * c);
}
inline Expr tanh(Expr dy, Expr y, const Attributes&) { return dy * ((1.0 - y) * (1.0 + y)); }
inline Expr thresholded_relu(Expr dy, Expr x, const Attributes& attributes) {
  return where(greater(x, attributes.get_float("alpha", 1.0f)), dy, zero(dy));
}

}  // namespace halfnote::elementwise::derivative
