// What every device needs to know of a call of a unary op or its gradient.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/math/elementwise.h"

namespace halfnote::cpu {

/// The attributes of the call's op (of a gradient: its op's), as its formula wants them.
math::Parameters unary_parameters(const KernelCall& call);

/// The reason why `inputs` operands and output 0 are not all of one type and size, or an empty
/// string.
std::string uneven_unary(const KernelCall& call, size_t inputs);

}  // namespace halfnote::cpu
