// Broadcasting as a walk over runs: over a run each input either goes on with step 1 or stays at
// one element. Same shapes give one single run, a scalar operand one run of steps (1, 0), a bias
// along the last dim one run a row.
#pragma once

#include <vector>

#include "base/error.h"
#include "kernels/cpu/runs.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// The runs of `output`, with the strides of each input. Throws Error(kModel) if an input does not
/// broadcast.
Runs plan_broadcast(const std::vector<Shape>& inputs, const Shape& output);

/// True if input and output have elements of one size and as many, so that one may lie over the
/// other.
bool is_elementwise(const KernelCall& call, size_t input, size_t output = 0);

/// Integers have no infinity to answer with, so a zero divisor is an error.
Error division_by_zero();

}  // namespace halfnote::cpu
