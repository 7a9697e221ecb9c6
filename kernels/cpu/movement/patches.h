// What Patches does, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/cpu/reduction/window.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// Channel t·C + c of the result is channel c of the image as tap t of each window sees it (the
/// taps in row-major order); what lies outside, and the channels from `filled` on, are 0.
struct PatchesPlan {
  PoolGeometry windows;
  int64_t batch = 0, channels = 0;  // of the image
  int64_t made = 0, filled = 0;     // channels of the result
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for windows that
/// do not fit.
std::string plan_patches(const KernelCall& call, PatchesPlan& plan);

}  // namespace halfnote::cpu
