// Rows of the contraction family that stand in files of their own.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> conv_rows();  // conv.cu: Conv, ConvTranspose and the gradients of Conv

}  // namespace halfnote::HN_CUDA
