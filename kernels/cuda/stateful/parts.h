// The rows of the stateful family, file by file.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> keeping_rows();           // keep.cu: states that a skipped step leaves
std::vector<KernelRow> optimizer_rows();         // optimizer.cu: rules that go element by element
std::vector<KernelRow> random_rows();            // random.cu: Dropout, RandomNormal, RandomUniform
std::vector<KernelRow> scaled_optimizer_rows();  // optimizer_scaled.cu: LAMB, Adafactor
std::vector<KernelRow> scaling_rows();  // scaling.cu: AllFinite, GlobalNorm, UpdateLossScale

}  // namespace halfnote::HN_CUDA
