// Floating-point operations of contractions, by the usual count of two per multiply-add.
#pragma once

#include "kernels/kernel.h"

namespace halfnote {

/// 2·M·N·K of a MatMul, Gemm, convolution, recurrent op or one of their gradients; 0 for every
/// other op.
double contraction_flops(const KernelCall& call);

}  // namespace halfnote
