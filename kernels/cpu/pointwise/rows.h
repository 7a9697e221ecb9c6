// The rows of the pointwise kernels.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu::pointwise {

/// Single elementwise ops, and ai.halfnote.Pointwise, as tile programs.
std::vector<KernelRow> rows();

}  // namespace halfnote::cpu::pointwise
