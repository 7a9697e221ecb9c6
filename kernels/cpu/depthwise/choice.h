// Which depthwise convolutions are left to oneDNN.
#pragma once

#include <string>

#include "kernels/cpu/contraction/conv_plan.h"

namespace halfnote::cpu::depthwise {

enum class Direction { kForward, kGradInput, kGradWeight };

/// Why the library's kernel is taken; empty if ours is.
std::string library_is_faster(const KernelCall& call, const ConvPlan& plan, Direction direction);

}  // namespace halfnote::cpu::depthwise
