// The same case in FP32 on a device and on the CPU, which is the oracle: their rounding may differ,
// and nothing else.
#pragma once

#include <string>
#include <vector>

#include "case_run.h"

namespace halfnote::cases {

/// How far a device's run is from the CPU's; what each number is relative to stands in case.h.
struct BesideCpu {
  double loss = 0, gradient = 0, trajectory = 0;
  std::vector<std::string> failures;  // the bars that were missed

  double worst() const;
};

/// Runs the case on the CPU too, and holds against it what the device gave.
BesideCpu compare_with_cpu(Case c, const StepRun& step, const Trajectories& trajectories);

}  // namespace halfnote::cases
