// What Pad does, checked: for the kernels of every device.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/math/pad.h"

namespace halfnote::cpu {

/// Elements put before (after) each axis; negative ones are cut off.
struct PadPlan {
  math::PadMode mode = math::PadMode::kConstant;
  std::vector<int64_t> before, after;
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that do
/// not fit.
std::string plan_pad(const KernelCall& call, PadPlan& plan);

/// The kernel of a call, which says so if it only puts zeros behind the input.
Prepared as_appending(const KernelCall& call, const PadPlan& plan, Prepared prepared);

}  // namespace halfnote::cpu
