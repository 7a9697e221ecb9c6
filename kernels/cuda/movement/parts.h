// Rows of the movement family that stand in files of their own.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

/// Dims that a tuple of indices names at most.
inline constexpr int kMostIndices = 8;

std::vector<KernelRow> gather_rows();       // gather.cu: Gather*, ReverseSequence
std::vector<KernelRow> generate_rows();     // generate.cu: made from shapes, attributes or scalars
std::vector<KernelRow> pad_rows();          // pad.cu: Pad, Trilu
std::vector<KernelRow> patches_rows();      // patches.cu
std::vector<KernelRow> strided_sum_rows();  // strided_sum.cu
std::vector<KernelRow> scatter_rows();      // scatter.cu: ScatterND, ScatterElements

/// A kernel of which output 0 is the first bytes of input 0: a view, where both may share a buffer.
Prepared same_bytes(const KernelCall& call);

}  // namespace halfnote::HN_CUDA
