// ScatterND.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

Prepared prepare_scatter_nd(const KernelCall& call);

}  // namespace halfnote::HN_CUDA
