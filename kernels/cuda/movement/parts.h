// Rows of the movement family that stand in files of their own.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> gather_rows();   // gather.cu: Gather, GatherElements, GatherND, OneHot
std::vector<KernelRow> pad_rows();      // pad.cu: ConstantOfShape, Pad, Trilu
std::vector<KernelRow> scatter_rows();  // scatter.cu: ScatterND, ScatterElements

}  // namespace halfnote::HN_CUDA
