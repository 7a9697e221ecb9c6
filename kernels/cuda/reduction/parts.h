// Rows of the reduction family that stand in files of their own, and what some of them share.
#pragma once

#include <vector>

#include "kernels/cpu/reduction/along.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> pool_rows();   // pool.cu: MaxPool, AveragePool, their gradients, LpPool
std::vector<KernelRow> along_rows();  // along.cu: ArgMax, ArgMin, TopK
std::vector<KernelRow> running_sum_rows();  // running_sum.cu: CumSum
std::vector<KernelRow> resize_rows();       // resize.cu: Resize, ResizeGrad
std::vector<KernelRow> roi_align_rows();    // roi_align.cu: RoiAlign and the gradient of its mean

inline constexpr unsigned kAlongBlock =
    128;  // threads, for a line along which something is done in order

/// Is a line worth a block?
inline bool wants_blocks(const cpu::Along& along) { return along.inner == 1 && along.dim > 64; }

}  // namespace halfnote::HN_CUDA
