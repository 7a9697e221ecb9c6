// What random words become, written once for the CPU and for CUDA; all in f64.
#pragma once

#include "kernels/math/philox.h"

namespace halfnote::math {

/// low + r·2⁻³²·(high − low) of each word.
struct UniformDraw {
  double low = 0, high = 1;
  HN_HD void four(const PhiloxCounter& words, double* to) const {
    for (int k = 0; k < 4; ++k) to[k] = low + words.word[k] * 0x1p-32 * (high - low);
  }
};

/// Two pairs by Box and Muller's method.
struct NormalDraw {
  double mean = 0, scale = 1;
  HN_HD void four(const PhiloxCounter& words, double* to) const {
    constexpr double kPi = 3.14159265358979323846;
    for (int k = 0; k < 4; k += 2) {
      const double radius = sqrt(-2 * log((words.word[k] + 1.0) * 0x1p-32));
      const double angle = 2 * kPi * (words.word[k + 1] * 0x1p-32);
      to[k] = mean + scale * radius * cos(angle);
      to[k + 1] = mean + scale * radius * sin(angle);
    }
  }
};

/// ai.halfnote.Dropout: an element is kept when its word is ≥ ratio·2³².
struct DropoutRule {
  uint64_t threshold = 0;
  float factor = 1;

  template <class M>
  HN_HD M value(M x, uint32_t word) const {
    return word >= threshold ? x * static_cast<M>(factor) : M(0);
  }
};

}  // namespace halfnote::math
