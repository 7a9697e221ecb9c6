#include "kernels/cpu/contraction/recurrent/activation.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/fast/vector_math.h"

namespace halfnote::cpu {
namespace {

template <class M, class F>
void each(const M* x, int64_t n, M* y, F&& f) {
  for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

/// The two functions that every model uses, vectorised in f32.
template <class M>
bool activate_fast(ActivationKind kind, const M* x, int64_t n, M* y) {
  if constexpr (std::is_same_v<M, float>) {
    if (kind == ActivationKind::kSigmoid) return fast::vector_math().sigmoid(x, n, y), true;
    if (kind == ActivationKind::kTanh) return fast::vector_math().tanh(x, n, y), true;
  }
  return false;
}

template <class M>
void activate_each(const Activation& f, const M* x, int64_t n, M* y) {
  const auto alpha = static_cast<M>(f.alpha), beta = static_cast<M>(f.beta);
  if (activate_fast(f.kind, x, n, y)) return;
  switch (f.kind) {
    case ActivationKind::kAffine:
      return each(x, n, y, [=](M v) { return alpha * v + beta; });
    case ActivationKind::kElu:
      return each(x, n, y, [=](M v) { return v < 0 ? alpha * std::expm1(v) : v; });
    case ActivationKind::kHardSigmoid:
      return each(x, n, y, [=](M v) { return std::clamp(alpha * v + beta, M(0), M(1)); });
    case ActivationKind::kLeakyRelu:
      return each(x, n, y, [=](M v) { return v < 0 ? alpha * v : v; });
    case ActivationKind::kRelu:
      return each(x, n, y, [](M v) { return v < 0 ? M(0) : v; });
    case ActivationKind::kScaledTanh:
      return each(x, n, y, [=](M v) { return alpha * std::tanh(beta * v); });
    case ActivationKind::kSigmoid:
      return each(x, n, y, [](M v) { return 1 / (1 + std::exp(-v)); });
    case ActivationKind::kSoftplus:
      return each(x, n, y,
                  [](M v) { return std::max(v, M(0)) + std::log1p(std::exp(-std::fabs(v))); });
    case ActivationKind::kSoftsign:
      return each(x, n, y, [](M v) { return v / (1 + std::fabs(v)); });
    case ActivationKind::kTanh:
      return each(x, n, y, [](M v) { return std::tanh(v); });
    case ActivationKind::kThresholdedRelu:
      return each(x, n, y, [=](M v) { return v < alpha ? M(0) : v; });
  }
}

/// The slope at x by y = f(x).
template <class M, class F>
void slopes(const M* x, const M* y, int64_t n, M* slope, F&& f) {
  for (int64_t i = 0; i < n; ++i) slope[i] = f(x[i], y[i]);
}

template <class M>
void slope_each(const Activation& f, const M* x, const M* y, int64_t n, M* s) {
  const auto alpha = static_cast<M>(f.alpha), beta = static_cast<M>(f.beta);
  switch (f.kind) {
    case ActivationKind::kAffine:
      return slopes(x, y, n, s, [=](M, M) { return alpha; });
    case ActivationKind::kElu:
      return slopes(x, y, n, s, [=](M v, M w) { return v < 0 ? w + alpha : M(1); });
    case ActivationKind::kHardSigmoid:
      return slopes(x, y, n, s, [=](M, M w) { return w > 0 && w < 1 ? alpha : M(0); });
    case ActivationKind::kLeakyRelu:
      return slopes(x, y, n, s, [=](M v, M) { return v < 0 ? alpha : M(1); });
    case ActivationKind::kRelu:
      return slopes(x, y, n, s, [](M v, M) { return v > 0 ? M(1) : M(0); });
    case ActivationKind::kScaledTanh:
      return slopes(x, y, n, s, [=](M v, M) {
        const M t = std::tanh(beta * v);
        return alpha * beta * (1 - t * t);
      });
    case ActivationKind::kSigmoid:
      return slopes(x, y, n, s, [](M, M w) { return w * (1 - w); });
    case ActivationKind::kSoftplus:
      return slopes(x, y, n, s, [](M v, M) { return 1 / (1 + std::exp(-v)); });
    case ActivationKind::kSoftsign:
      return slopes(x, y, n, s, [](M v, M) {
        const M d = 1 + std::fabs(v);
        return 1 / (d * d);
      });
    case ActivationKind::kTanh:
      return slopes(x, y, n, s, [](M, M w) { return 1 - w * w; });
    case ActivationKind::kThresholdedRelu:
      return slopes(x, y, n, s, [=](M v, M) { return v < alpha ? M(0) : M(1); });
  }
}

}  // namespace

template <class M>
void activate(const Activation& f, const std::optional<float>& clip, const M* x, int64_t n, M* y) {
  if (!clip) return activate_each(f, x, n, y);
  const auto bound = static_cast<M>(*clip);
  each(x, n, y, [bound](M v) { return v > bound ? bound : v < -bound ? -bound : v; });
  activate_each(f, y, n, y);
}

template <class M>
void activation_slope(const Activation& f, const std::optional<float>& clip, const M* x, const M* y,
                      int64_t n, M* slope) {
  slope_each(f, x, y, n, slope);
  if (!clip) return;
  const auto bound = static_cast<M>(*clip);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] > bound || x[i] < -bound) slope[i] = 0;
  }
}

template void activate<float>(const Activation&, const std::optional<float>&, const float*, int64_t,
                              float*);
template void activate<double>(const Activation&, const std::optional<float>&, const double*,
                               int64_t, double*);
template void activation_slope<float>(const Activation&, const std::optional<float>&, const float*,
                                      const float*, int64_t, float*);
template void activation_slope<double>(const Activation&, const std::optional<float>&,
                                       const double*, const double*, int64_t, double*);

}  // namespace halfnote::cpu
