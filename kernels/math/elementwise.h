// The unary formulas and their derivatives, written once for the CPU and for CUDA.
//
// A formula is a struct with `value(x, p)`, the op, and, where the op has a derivative,
// `gradient(dy, s, p)`: the gradient for X given that of Y. `s` is the input X or the output Y of
// the op, as docs/operators.md says for
// `<Op>Grad`; the comment `S = Y` marks the latter, all others read X. M is float or double. NaN
// goes through.
#pragma once

#include "kernels/math/host_device.h"

namespace halfnote::math {

/// The attributes of a formula, in the order of its row in the kernel table.
struct Parameters {
  double alpha = 0;
  double beta = 0;
};

struct Abs {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return fabs(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return x > 0 ? dy : x < 0 ? -dy : x * 0;  // 0 at 0, NaN at NaN
  }
};

struct Acos {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return acos(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return -dy / sqrt((1 - x) * (1 + x));
  }
};

struct Acosh {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return acosh(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy / (sqrt(x - 1) * sqrt(x + 1));
  }
};

struct Asin {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return asin(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy / sqrt((1 - x) * (1 + x));
  }
};

struct Asinh {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return asinh(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy / hypot(M(1), x);
  }
};

struct Atan {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return atan(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy / (1 + x * x);
  }
};

struct Atanh {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return atanh(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy / ((1 - x) * (1 + x));
  }
};

struct Ceil {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return ceil(x);
  }
};

struct Celu {  // alpha
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    const M alpha = M(p.alpha);
    return x > 0 ? x : alpha * expm1(x / alpha);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    return x > 0 ? dy : dy * exp(x / M(p.alpha));
  }
};

struct Cos {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return cos(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return -dy * sin(x);
  }
};

struct Cosh {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return cosh(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy * sinh(x);
  }
};

struct Elu {  // alpha, from_input. S = Y, or X if from_input is set
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    return x > 0 ? x : M(p.alpha) * expm1(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M s, const Parameters& p) {
    const M alpha = M(p.alpha);
    if (s > 0) return dy;
    return dy * (p.beta != 0 ? alpha * exp(s) : s + alpha);
  }
};

struct Erf {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return erf(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy * M(1.1283791670955126) * exp(-x * x);  // 2/sqrt(pi)
  }
};

struct Exp {  // S = Y
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return exp(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M y, const Parameters&) {
    return dy * y;
  }
};

struct Floor {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return floor(x);
  }
};

/// x·Φ(x). Φ as erfc keeps its relative accuracy far into the negative tail, where 1 + erf cancels.
struct GeluExact {
  template <class M>
  HN_HD static M cdf(M x) {
    return M(0.5) * erfc(x * M(-0.70710678118654752));
  }
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return x * cdf(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    const M density = M(0.39894228040143268) * exp(x * x * M(-0.5));  // 1/sqrt(2 pi)
    return dy * (cdf(x) + x * density);
  }
};

/// x·(1 + tanh u)/2 with u = sqrt(2/pi)·(x + 0.044715·x³); (1 + tanh u)/2 is sigmoid(2u), exact in
/// both tails.
struct GeluTanh {
  template <class M>
  HN_HD static M gate(M x) {
    const M twice_u = M(1.5957691216057308) * (x + M(0.044715) * x * x * x);
    const M e = exp(-fabs(twice_u));
    return (twice_u >= 0 ? M(1) : e) / (1 + e);
  }
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return x * gate(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    const M twice_slope = M(1.5957691216057308) * (1 + M(3 * 0.044715) * x * x);
    const M left = gate(x);
    return dy * (left + x * twice_slope * left * gate(-x));
  }
};

/// The op Gelu: alpha 1 for `approximate = "tanh"`, 0 for "none".
struct Gelu {
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    return p.alpha != 0 ? GeluTanh::value(x, p) : GeluExact::value(x, p);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    return p.alpha != 0 ? GeluTanh::gradient(dy, x, p) : GeluExact::gradient(dy, x, p);
  }
};

struct HardSigmoid {  // alpha, beta
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    const M y = M(p.alpha) * x + M(p.beta);
    return y < 0 ? M(0) : y > 1 ? M(1) : y;
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    const M y = M(p.alpha) * x + M(p.beta);
    return y > 0 && y < 1 ? M(p.alpha) * dy : M(0);
  }
};

struct HardSwish {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    const M gate = x / 6 + M(0.5);
    return gate <= 0 ? M(0) : gate >= 1 ? x : x * gate;
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return x <= -3 ? M(0) : x >= 3 ? dy : dy * (x / 3 + M(0.5));
  }
};

struct LeakyRelu {  // alpha. S = Y; X serves as well and must where alpha < 0, for then the sign of
                    // Y says nothing
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    return x < 0 ? M(p.alpha) * x : x;
  }
  template <class M>
  HN_HD static M gradient(M dy, M s, const Parameters& p) {
    return s > 0 ? dy : M(p.alpha) * dy;
  }
};

struct Log {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return log(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy / x;
  }
};

/// x·tanh(softplus(x)); with n = e² + 2e, e = exp(x), the tanh is n/(n + 2): no cancellation, no
/// overflow below 20.
struct Mish {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    if (x > 20) return x;
    const M e = exp(x);
    const M n = e * (e + 2);
    return x * (n / (n + 2));
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    if (x > 20) return dy;
    const M e = exp(x);
    const M n = e * (e + 2);
    const M slope = 4 * (n + 1) / ((n + 2) * (n + 2));  // 1 - tanh²
    return dy * (n / (n + 2) + x * slope * (e / (1 + e)));
  }
};

struct Neg {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return -x;
  }
};

struct Reciprocal {  // S = Y
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return 1 / x;
  }
  template <class M>
  HN_HD static M gradient(M dy, M y, const Parameters&) {
    return -dy * y * y;
  }
};

struct Relu {  // S = Y
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return x < 0 ? M(0) : x;
  }
  template <class M>
  HN_HD static M gradient(M dy, M y, const Parameters&) {
    return y > 0 ? dy : M(0);
  }
};

struct Round {  // ties to even
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return rint(x);
  }
};

struct Selu {  // alpha, gamma
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    return M(p.beta) * (x > 0 ? x : M(p.alpha) * expm1(x));
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    const M gamma = M(p.beta);
    return dy * (x > 0 ? gamma : gamma * M(p.alpha) * exp(x));
  }
};

struct Shrink {  // lambd, bias
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    const M lambda = M(p.alpha), bias = M(p.beta);
    return x < -lambda ? x + bias : x > lambda ? x - bias : x * 0;
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    const M lambda = M(p.alpha);
    return x < -lambda || x > lambda ? dy : M(0);
  }
};

struct Sigmoid {  // S = Y
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    const M e = exp(-fabs(x));  // never overflows
    return (x >= 0 ? M(1) : e) / (1 + e);
  }
  template <class M>
  HN_HD static M gradient(M dy, M y, const Parameters&) {
    return dy * y * (1 - y);
  }
};

struct Sign {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return x > 0 ? M(1) : x < 0 ? M(-1) : x;
  }
};

struct Sin {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return sin(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy * cos(x);
  }
};

struct Sinh {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return sinh(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    return dy * cosh(x);
  }
};

struct Softplus {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return (x < 0 ? M(0) : x) + log1p(exp(-fabs(x)));
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    return dy * Sigmoid::value(x, p);
  }
};

struct Softsign {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return x / (1 + fabs(x));
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    const M root = 1 + fabs(x);
    return dy / root / root;
  }
};

struct Sqrt {  // S = Y
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return sqrt(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M y, const Parameters&) {
    return dy / (2 * y);
  }
};

struct Swish {  // alpha
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    return x * Sigmoid::value(M(p.alpha) * x, p);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    const M scaled = M(p.alpha) * x;
    const M gate = Sigmoid::value(scaled, p);
    return dy * (gate + scaled * gate * Sigmoid::value(-scaled, p));
  }
};

struct Tan {
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return tan(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters&) {
    const M c = cos(x);
    return dy / (c * c);
  }
};

struct Tanh {  // S = Y
  template <class M>
  HN_HD static M value(M x, const Parameters&) {
    return tanh(x);
  }
  template <class M>
  HN_HD static M gradient(M dy, M y, const Parameters&) {
    return dy * ((1 - y) * (1 + y));
  }
};

struct ThresholdedRelu {  // alpha
  template <class M>
  HN_HD static M value(M x, const Parameters& p) {
    return x <= M(p.alpha) ? M(0) : x;
  }
  template <class M>
  HN_HD static M gradient(M dy, M x, const Parameters& p) {
    return x > M(p.alpha) ? dy : M(0);
  }
};

}  // namespace halfnote::math
