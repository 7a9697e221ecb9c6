// The update rules of the optimizers (docs/operators.md), an element at a time, written once for
// the CPU and for CUDA. They are PyTorch's rules; M is float or double. What a step shares is
// computed in f64 beforehand.
#pragma once

#include "kernels/math/host_device.h"

namespace halfnote::math {

/// param − lr·(grad + weight_decay·param).
template <class M>
HN_HD M sgd(M param, M grad, M lr, M weight_decay) {
  return param - lr * (grad + weight_decay * param);
}

template <class M>
struct MomentumStep {
  M lr, momentum, one_minus_dampening, weight_decay;
  bool first, nesterov;

  HN_HD void update(M& param, M grad, M& velocity) const {
    grad = grad + weight_decay * param;
    velocity = first ? grad : momentum * velocity + one_minus_dampening * grad;
    param = param - lr * (nesterov ? grad + momentum * velocity : velocity);
  }
};

template <class M>
struct AdamStep {
  M beta1, one_minus_beta1, beta2, one_minus_beta2;
  M epsilon;
  M decay;        // added to the gradient, times param; 0 if decoupled
  M keep;         // param is multiplied by it first; 1 if not decoupled
  M step_size;    // lr / (1 − beta1^step)
  M second_root;  // sqrt(1 − beta2^step)

  HN_HD void update(M& param, M grad, M& m, M& v) const {
    grad = grad + decay * param;
    param = param * keep;
    m = beta1 * m + one_minus_beta1 * grad;
    v = beta2 * v + one_minus_beta2 * grad * grad;
    param = param - step_size * m / (sqrt(v) / second_root + epsilon);
  }
};

struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool decoupled = false;  // AdamW
};

/// `step` counts from 1.
template <class M>
HN_HD AdamStep<M> adam_step(const AdamSettings& settings, double lr, double step) {
  AdamStep<M> result;
  result.beta1 = M(settings.beta1);
  result.one_minus_beta1 = M(1 - settings.beta1);
  result.beta2 = M(settings.beta2);
  result.one_minus_beta2 = M(1 - settings.beta2);
  result.epsilon = M(settings.epsilon);
  result.decay = settings.decoupled ? M(0) : M(settings.weight_decay);
  result.keep = settings.decoupled ? M(1 - lr * settings.weight_decay) : M(1);
  result.step_size = M(lr / (1 - pow(settings.beta1, step)));
  result.second_root = M(sqrt(1 - pow(settings.beta2, step)));
  return result;
}

}  // namespace halfnote::math
