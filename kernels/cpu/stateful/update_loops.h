// The inner loops of LAMB and Adafactor on f32, with the formulas and bits of kernels/math/
// optimizer.h. Compiled for AVX2 and AVX-512, which give the same bits.
#pragma once

#include <cstdint>

namespace halfnote::cpu {

/// math::LambStep<float>.
struct LambNumbers {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay, first, second_root;
};

struct UpdateLoops {
  const char* name;

  /// New moments, which may lie over the old ones, and the direction of each element's step.
  void (*lamb_moments)(const LambNumbers& numbers, const float* param, const float* grad,
                       const float* m, const float* v, int64_t n, float* new_m, float* new_v,
                       float* direction);
  /// to = param − rate·direction, with the new moments; may lie over param.
  void (*lamb_step)(const LambNumbers& numbers, float rate, const float* param, const float* m,
                    const float* v, int64_t n, float* to);

  /// Adds grad² + epsilon, in f64, to each element of `columns`; gives their sum, in 8 interleaved
  /// parts.
  double (*add_squares)(const float* grad, int64_t n, float epsilon, double* columns);
  /// moment = beta·old + rest·(grad² + epsilon); may lie over old.
  void (*move_moments)(float beta, float rest, float epsilon, const float* grad, const float* old,
                       int64_t n, float* moment);
  /// y = grad / sqrt(moment)
  void (*over_roots)(const float* grad, const float* moment, int64_t n, float* y);
  /// y = grad / (row·columns)
  void (*over_factors)(const float* grad, float row, const float* columns, int64_t n, float* y);
  /// to = param·keep − rate·update; may lie over param.
  void (*decayed_step)(float keep, float rate, const float* param, const float* update, int64_t n,
                       float* to);
};

/// The loops for this CPU; null where it has neither AVX-512 nor AVX2 with FMA.
const UpdateLoops* update_loops();

/// Only on x86-64.
extern const UpdateLoops kAvx2UpdateLoops, kAvx512UpdateLoops;

}  // namespace halfnote::cpu
