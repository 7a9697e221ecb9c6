// What the two forms of AttentionGrad share: in math precision (gradient.cu), and of 16-bit
// operands on tensor cores (tensor_gradient.cu).
#pragma once

#include "kernels/cuda/contraction/attention/parts.h"

namespace halfnote::HN_CUDA {

/// What AttentionGrad reads.
template <class M>
struct GradientOperands {
  Elements dy, q, k, v, y;
  const M *most, *sum;
  M* delta;  // (batches, M), of the workspace
};

/// Heads of 16 bits that tensor cores take: the sums of larger ones are too many for registers.
inline bool fits_tensor_cores(const AttentionPlan& plan) {
  return is_16bit_float(plan.dtype) && std::max(plan.d, plan.e) <= 128;
}

/// dQ, dK and dV, as far as they are wanted, on tensor cores; `in.delta` is there.
void tensor_gradients(Stream& stream, const DeviceAttention& p, const GradientOperands<float>& in,
                      const RealOutput& dq, const RealOutput& dk, const RealOutput& dv);

}  // namespace halfnote::HN_CUDA
