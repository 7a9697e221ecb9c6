// The activation functions of recurrent ops and their slopes, for one number.
#pragma once

#include "base/ops/recurrence.h"
#include "kernels/math/host_device.h"

namespace halfnote::math {

/// f(x)
template <ActivationKind kKind, class M>
HN_HD M activation(M x, M alpha, M beta) {
  if constexpr (kKind == ActivationKind::kAffine) return alpha * x + beta;
  if constexpr (kKind == ActivationKind::kElu) return x < 0 ? alpha * expm1(x) : x;
  if constexpr (kKind == ActivationKind::kHardSigmoid) {
    const M y = alpha * x + beta;
    return y < 0 ? M(0) : y > 1 ? M(1) : y;
  }
  if constexpr (kKind == ActivationKind::kLeakyRelu) return x < 0 ? alpha * x : x;
  if constexpr (kKind == ActivationKind::kRelu) return x < 0 ? M(0) : x;
  if constexpr (kKind == ActivationKind::kScaledTanh) return alpha * tanh(beta * x);
  if constexpr (kKind == ActivationKind::kSigmoid) return 1 / (1 + exp(-x));
  if constexpr (kKind == ActivationKind::kSoftplus) {
    return (x < 0 ? M(0) : x) + log1p(exp(-fabs(x)));
  }
  if constexpr (kKind == ActivationKind::kSoftsign) return x / (1 + fabs(x));
  if constexpr (kKind == ActivationKind::kTanh) return tanh(x);
  if constexpr (kKind == ActivationKind::kThresholdedRelu) return x < alpha ? M(0) : x;
}

/// f'(x), where y = f(x)
template <ActivationKind kKind, class M>
HN_HD M activation_slope(M x, M y, M alpha, M beta) {
  if constexpr (kKind == ActivationKind::kAffine) return alpha;
  if constexpr (kKind == ActivationKind::kElu) return x < 0 ? y + alpha : M(1);
  if constexpr (kKind == ActivationKind::kHardSigmoid) return y > 0 && y < 1 ? alpha : M(0);
  if constexpr (kKind == ActivationKind::kLeakyRelu) return x < 0 ? alpha : M(1);
  if constexpr (kKind == ActivationKind::kRelu) return x > 0 ? M(1) : M(0);
  if constexpr (kKind == ActivationKind::kScaledTanh) {
    const M t = tanh(beta * x);
    return alpha * beta * (1 - t * t);
  }
  if constexpr (kKind == ActivationKind::kSigmoid) return y * (1 - y);
  if constexpr (kKind == ActivationKind::kSoftplus) return 1 / (1 + exp(-x));
  if constexpr (kKind == ActivationKind::kSoftsign) {
    const M d = 1 + fabs(x);
    return 1 / (d * d);
  }
  if constexpr (kKind == ActivationKind::kTanh) return 1 - y * y;
  if constexpr (kKind == ActivationKind::kThresholdedRelu) return x < alpha ? M(0) : M(1);
}

/// Calls `body.template operator()<kKind>()`.
template <class Body>
HN_HD void with_activation(ActivationKind kind, Body&& body) {
  switch (kind) {
#define HN_KIND(name)        \
  case ActivationKind::name: \
    return body.template operator()<ActivationKind::name>();
    HN_KIND(kAffine)
    HN_KIND(kElu)
    HN_KIND(kHardSigmoid)
    HN_KIND(kLeakyRelu)
    HN_KIND(kRelu)
    HN_KIND(kScaledTanh)
    HN_KIND(kSigmoid)
    HN_KIND(kSoftplus)
    HN_KIND(kSoftsign)
    HN_KIND(kTanh)
    HN_KIND(kThresholdedRelu)
#undef HN_KIND
  }
}

}  // namespace halfnote::math
