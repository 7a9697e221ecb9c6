// Holds the CUDA kernels, under the emulation, against what the CPU's gave for the same call.
#pragma once

#include <vector>

#include "base/tensor.h"
#include "kernels/kernel.h"

namespace halfnote::test {

/// Runs the call on a device of its own; absent operands are undefined tensors. `in_place`: output
/// 0 lies over input 0 where the kernel allows it. Throws Error(kUnsupported) with the reasons if
/// the device has no kernel.
std::vector<Tensor> run_on_emulated_cuda(const KernelCall& call, const std::vector<Tensor>& inputs,
                                         bool in_place = false);

/// If the device has a kernel for the call: expects `wanted` from it, up to rounding, and the same
/// bytes in three orders of the threads.
void check_emulated_cuda(const KernelCall& call, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& wanted);

}  // namespace halfnote::test
