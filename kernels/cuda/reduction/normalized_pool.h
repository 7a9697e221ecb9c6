// The gradient of a MaxPool that kept its taps, and of the BatchNormalization before it
// (kernels/cpu/reduction/kept_maxima.h), of tensors that lie plain or channels last.
#pragma once

#include "kernels/cpu/reduction/kept_maxima.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

/// `channels` lie side by side: 1 where the tensors are plain.
Prepared prepare_normalized_pool_grad(const KernelCall& call, const cpu::KeptMaxPool& pool,
                                      int64_t channels);

}  // namespace halfnote::HN_CUDA
