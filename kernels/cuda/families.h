// The families of CUDA kernels; the files have the names of those of kernels/cpu.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> elementwise_kernels();
std::vector<KernelRow> contraction_kernels();
std::vector<KernelRow> normalization_kernels();
std::vector<KernelRow> reduction_kernels();
std::vector<KernelRow> movement_kernels();
std::vector<KernelRow> loss_kernels();
std::vector<KernelRow> stateful_kernels();
std::vector<KernelRow> quantized_kernels();
std::vector<KernelRow> signal_kernels();

}  // namespace halfnote::HN_CUDA
