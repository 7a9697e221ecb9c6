// What OneHot does, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/kernel.h"

namespace halfnote::cpu {

/// The result as (…, depth, inner).
struct OneHotPlan {
  int64_t depth = 0, inner = 1;
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that
/// do not fit.
std::string plan_one_hot(const KernelCall& call, OneHotPlan& plan);

}  // namespace halfnote::cpu
