// What every device needs to know of a call of UpdateLossScale.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/math/loss_scale.h"

namespace halfnote::cpu {

/// Inputs and outputs 0 to 7 are the states in the order of LossScaleState; then comes the finite
/// flag.
inline constexpr size_t kLossScaleStates = 8;

/// Reads the rule; the reason why operands or attributes do not fit, or an empty string.
std::string plan_update_loss_scale(const KernelCall& call, math::LossScaleRule& rule);

}  // namespace halfnote::cpu
