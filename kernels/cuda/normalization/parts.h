// Rows of the normalization family that stand in files of their own.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> batch_norm_rows();  // batch.cu: BatchNormalization and its gradient
std::vector<KernelRow> group_norm_rows();  // group.cu: Group-, InstanceNormalization, gradient
KernelRow layer_grad_row();                // layer_grad.cu
std::vector<KernelRow> layer_norm_rows();  // layer.cu: LayerNormalization and its gradient
std::vector<KernelRow> local_norm_rows();  // local.cu: LRN, LpNormalization and a rare one
KernelRow rms_grad_row();                  // rms_grad.cu
std::vector<KernelRow> rms_norm_rows();    // rms.cu: RMSNormalization and its gradient

}  // namespace halfnote::HN_CUDA
