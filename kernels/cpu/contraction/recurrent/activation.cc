#include "kernels/cpu/contraction/recurrent/activation.h"

#include <type_traits>

#include "kernels/cpu/fast/vector_math.h"
#include "kernels/math/activation.h"

namespace halfnote::cpu {
namespace {

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
  math::with_activation(f.kind, [&]<ActivationKind kKind>() {
    for (int64_t i = 0; i < n; ++i) y[i] = math::activation<kKind>(x[i], alpha, beta);
  });
}

}  // namespace

template <class M>
void activate(const Activation& f, const std::optional<float>& clip, const M* x, int64_t n, M* y) {
  if (!clip) return activate_each(f, x, n, y);
  const auto bound = static_cast<M>(*clip);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] > bound ? bound : x[i] < -bound ? -bound : x[i];
  activate_each(f, y, n, y);
}

template <class M>
void activation_slope(const Activation& f, const std::optional<float>& clip, const M* x, const M* y,
                      int64_t n, M* slope) {
  const auto alpha = static_cast<M>(f.alpha), beta = static_cast<M>(f.beta);
  math::with_activation(f.kind, [&]<ActivationKind kKind>() {
    for (int64_t i = 0; i < n; ++i) {
      slope[i] = math::activation_slope<kKind>(x[i], y[i], alpha, beta);
    }
  });
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
