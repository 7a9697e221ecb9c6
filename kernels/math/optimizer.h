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
  M late_keep;    // param is multiplied by it last; 1 but for adam_mode 1

  HN_HD void update(M& param, M grad, M& m, M& v) const {
    grad = grad + decay * param;
    param = param * keep;
    m = beta1 * m + one_minus_beta1 * grad;
    v = beta2 * v + one_minus_beta2 * grad * grad;
    param = (param - step_size * m / (sqrt(v) / second_root + epsilon)) * late_keep;
  }
};

struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool decoupled = false;    // AdamW
  bool correct_bias = true;  // AdamW: false takes moments as they are
  /// AdamW as Hugging Face wrote it and ONNX Runtime has it (adam_mode 1): epsilon before the bias
  /// correction, decay after the update.
  bool decay_last = false;
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
  const double kept = settings.decoupled ? 1 - lr * settings.weight_decay : 1;
  result.keep = settings.decay_last ? M(1) : M(kept);
  result.late_keep = settings.decay_last ? M(kept) : M(1);
  const double first = settings.correct_bias ? 1 - pow(settings.beta1, step) : 1;
  const double root = settings.correct_bias ? sqrt(1 - pow(settings.beta2, step)) : 1;
  result.step_size = M(settings.decay_last ? lr * root / first : lr / first);
  result.second_root = settings.decay_last ? M(1) : M(root);
  return result;
}

/// PyTorch's Adagrad; lr is that of the step, lr / (1 + (step − 1)·lr_decay).
template <class M>
struct AdagradStep {
  M lr, epsilon, weight_decay;

  HN_HD void update(M& param, M grad, M& sum) const {
    grad = grad + weight_decay * param;
    sum = sum + grad * grad;
    param = param - lr * grad / (sqrt(sum) + epsilon);
  }
};

struct AdagradSettings {
  double epsilon = 1e-10, lr_decay = 0, weight_decay = 0;
};

template <class M>
HN_HD AdagradStep<M> adagrad_step(const AdagradSettings& settings, double lr, double step) {
  return {M(lr / (1 + (step - 1) * settings.lr_decay)), M(settings.epsilon),
          M(settings.weight_decay)};
}

/// PyTorch's RMSprop. Centered: a variance that rounding made negative counts as 0 (PyTorch: NaN).
template <class M>
struct RMSpropStep {
  M lr, alpha, one_minus_alpha, epsilon, momentum, weight_decay;
  bool centered, has_momentum;

  HN_HD void update(M& param, M grad, M& square, M& mean, M& velocity) const {
    grad = grad + weight_decay * param;
    square = alpha * square + one_minus_alpha * grad * grad;
    M variance = square;
    if (centered) {
      mean = alpha * mean + one_minus_alpha * grad;
      variance = square - mean * mean;
      if (variance < M(0)) variance = M(0);
    }
    const M step = grad / (sqrt(variance) + epsilon);
    if (has_momentum) velocity = momentum * velocity + step;
    param = param - lr * (has_momentum ? velocity : step);
  }
};

struct RMSpropSettings {
  double alpha = 0.99, epsilon = 1e-8, momentum = 0, weight_decay = 0;
  bool centered = false;
};

template <class M>
HN_HD RMSpropStep<M> rmsprop_step(const RMSpropSettings& settings, double lr) {
  return {M(lr),
          M(settings.alpha),
          M(1 - settings.alpha),
          M(settings.epsilon),
          M(settings.momentum),
          M(settings.weight_decay),
          settings.centered,
          settings.momentum != 0};
}

/// Lion (Chen et al. 2023): the sign of an interpolated momentum; decay decoupled.
template <class M>
struct LionStep {
  M lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
  M keep;  // 1 − lr·weight_decay

  HN_HD void update(M& param, M grad, M& m) const {
    const M direction = beta1 * m + one_minus_beta1 * grad;
    const M sign = direction > M(0) ? M(1) : direction < M(0) ? M(-1) : M(0);
    param = param * keep - lr * sign;
    m = beta2 * m + one_minus_beta2 * grad;
  }
};

struct LionSettings {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
};

template <class M>
HN_HD LionStep<M> lion_step(const LionSettings& settings, double lr) {
  return {M(lr),
          M(settings.beta1),
          M(1 - settings.beta1),
          M(settings.beta2),
          M(1 - settings.beta2),
          M(1 - lr * settings.weight_decay)};
}

/// LAMB: Adam's direction with decoupled decay, its length that of the parameter. The biases of the
/// moments are corrected in the direction (You et al. 2020), or, as DeepSpeed does, in the rate
/// behind the norms.
template <class M>
struct LambStep {
  M beta1, one_minus_beta1, beta2, one_minus_beta2;
  M epsilon, weight_decay;
  M first;        // 1 − beta1^step; 1 where the rate corrects
  M second_root;  // sqrt(1 − beta2^step); likewise
  double rate;    // sqrt(1 − beta2^step) / (1 − beta1^step) where the rate corrects; else 1

  HN_HD void moments(M grad, M& m, M& v) const {
    m = beta1 * m + one_minus_beta1 * grad;
    v = beta2 * v + one_minus_beta2 * grad * grad;
  }
  HN_HD M direction(M param, M m, M v) const {
    return m / first / (sqrt(v) / second_root + epsilon) + weight_decay * param;
  }
};

template <class M>
HN_HD LambStep<M> lamb_step(const AdamSettings& settings, double step, bool rate_corrects) {
  LambStep<M> result;
  result.beta1 = M(settings.beta1);
  result.one_minus_beta1 = M(1 - settings.beta1);
  result.beta2 = M(settings.beta2);
  result.one_minus_beta2 = M(1 - settings.beta2);
  result.epsilon = M(settings.epsilon);
  result.weight_decay = M(settings.weight_decay);
  const double first = 1 - pow(settings.beta1, step);
  const double second_root = sqrt(1 - pow(settings.beta2, step));
  result.first = M(rate_corrects ? 1 : first);
  result.second_root = M(rate_corrects ? 1 : second_root);
  result.rate = rate_corrects ? second_root / first : 1;
  return result;
}

/// LAMB's trust ratio from two norms: 1 where one of them is 0; a bound of 0 is none.
HN_HD inline double lamb_ratio(double param, double direction, double min, double max) {
  if (!(param > 0) || !(direction > 0)) return 1;
  const double ratio = param / direction;
  if (min > 0 && ratio < min) return min;
  if (max > 0 && ratio > max) return max;
  return ratio;
}

/// What a step of Adafactor (Shazeer & Stern 2018; PyTorch's form) shares, in f64.
struct AdafactorStep {
  double beta;  // 1 − step^decay_rate, of the running means
  double rate;  // lr, min(lr, 1/sqrt(step)) if relative
  double keep;  // 1 − lr·weight_decay

  /// A running mean moved towards the mean of `count` squares.
  template <class M>
  HN_HD M mean(M old, double sum, int64_t count) const {
    return moved(old, M(sum / static_cast<double>(count)));
  }
  /// The running mean of one element's square.
  template <class M>
  HN_HD M moved(M old, M square) const {
    return M(beta) * old + M(1 - beta) * square;
  }
  /// What a gradient adds to the means.
  template <class M>
  HN_HD static M square(M grad, M epsilon) {
    return grad * grad + epsilon;
  }
  /// The update of an element from the running means of its row, of its column, and the mean of all
  /// row means of its matrix.
  template <class M>
  HN_HD static M factored(M grad, M row, double row_mean, M column) {
    return grad / (sqrt(row / M(row_mean)) * sqrt(column));
  }
  /// The factor of the update from the root mean squares of parameter and update.
  HN_HD double scale(double param_rms, double update_rms, bool scaled, double epsilon,
                     double clip) const {
    const double size = !scaled ? 1 : param_rms > epsilon ? param_rms : epsilon;
    const double excess = update_rms / clip;
    return rate * size / (excess > 1 ? excess : 1);
  }
};

HN_HD inline AdafactorStep adafactor_step(double lr, double step, double decay_rate, bool relative,
                                          double weight_decay) {
  const double limit = 1 / sqrt(step);
  return {1 - pow(step, decay_rate), relative && limit < lr ? limit : lr, 1 - lr * weight_decay};
}

}  // namespace halfnote::math
