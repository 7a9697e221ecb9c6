// Made-up operands of kernels that are measured.
#pragma once

#include <cstddef>

#include "kernels/kernel.h"

namespace halfnote {

/// `count` elements: numbers in [-1, 1) for floats, 1 for bools, 0 for the rest: an index, a label,
/// a step.
void make_up(DType dtype, int64_t count, std::byte* to);

}  // namespace halfnote
