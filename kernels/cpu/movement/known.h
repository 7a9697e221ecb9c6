// Results that are known before the first step: for the kernels of every device.
#pragma once

#include <string>

#include "base/tensor.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

// Each sets `value` to the result. The reason why the call has no kernel, or an empty string;
// Error(kModel) for an output of another size.

std::string plan_constant(const KernelCall& call, Tensor& value);
std::string plan_shape(const KernelCall& call, Tensor& value);
std::string plan_size(const KernelCall& call, Tensor& value);
/// The size of the result depends on the data, so the data must be known.
std::string plan_non_zero(const KernelCall& call, Tensor& value);

}  // namespace halfnote::cpu
