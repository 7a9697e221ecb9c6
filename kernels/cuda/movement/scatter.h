// Writing by index: ScatterND, ScatterElements.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> scatter_rows();

}  // namespace halfnote::HN_CUDA
