// What LAMB and Adafactor are asked for, on any device.
#pragma once

#include <string>

#include "kernels/cpu/stateful/optimizer_state.h"

namespace halfnote::cpu {

struct LambPlan {
  math::AdamSettings adam;
  double min_ratio = 0, max_ratio = 0;  // of the trust ratio; 0: no bound
  bool rate_corrects = false;
};

LambPlan lamb_plan(const KernelCall& call);

/// A parameter of rank 2 or more as `matrices` of (rows, columns); its second moment is kept as
/// the means of rows and columns.
struct AdafactorPlan {
  bool factored = false;
  int64_t matrices = 1, rows = 1, columns = 1;
  double decay_rate, epsilon, epsilon_param, clip, decay;
  bool relative, scaled;
};

/// Why the call is refused, or an empty string.
std::string plan_adafactor(const KernelCall& call, AdafactorPlan& plan, Signature& signature);

}  // namespace halfnote::cpu
