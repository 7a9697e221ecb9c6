// What ConstantOfShape does, checked: for the kernels of every device.
#pragma once

#include <string>

#include "base/tensor.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// Sets `value` to the one element that fills the result. The reason why the operands have no
/// kernel, or an empty string; Error(kModel) for a value of several elements.
std::string plan_fill(const KernelCall& call, Tensor& value);

}  // namespace halfnote::cpu
