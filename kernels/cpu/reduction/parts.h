// The rows of the reduction family, file by file.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu {

std::vector<KernelRow> reduce_rows();         // reduce.cc: Reduce*, global pooling
std::vector<KernelRow> along_rows();          // along.cc: ArgMax, ArgMin, CumSum, TopK
std::vector<KernelRow> pool_rows();           // pool.cc: MaxPool, AveragePool, LpPool
std::vector<KernelRow> pool_grad_rows();      // pool_grad.cc: MaxPoolGrad, MaxPoolTapsGrad, …
std::vector<KernelRow> kept_max_pool_rows();  // kept_maxima.cc: ai.halfnote.MaxPool
std::vector<KernelRow> roi_align_rows();      // roi_align.cc: RoiAlign, RoiAlignGrad
std::vector<KernelRow> resize_rows();         // resize.cc: Resize, ResizeGrad

}  // namespace halfnote::cpu
