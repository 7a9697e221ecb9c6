// What the two forms of AttentionGrad share: in math precision (gradient.cu), and of 16-bit
// operands on tensor cores (tensor_gradient.cu).
#pragma once

#include "kernels/cuda/contraction/attention/parts.h"

namespace halfnote::HN_CUDA {

inline constexpr float kLog2E = 1.44269504088896340736f;

/// Of a query, for tensor cores: P = 2^(score·log2(e) − scaled) · inverse, and Σ dY·Y.
struct alignas(16) QueryLine {
  float scaled = 0, inverse = 0, delta = 0;
  float most = 0;  // as it is: scaled, a score of -1e9 would be rounded otherwise than `scaled` was
};

/// What the terms make of the scores of a key where they are the same for all queries:
/// score·factor + addend. Factor 0: one of them hides the key.
struct KeyLine {
  float factor = 1, addend = 0;
};
/// Lines of a batch: those of whole blocks of keys.
__host__ __device__ inline int64_t key_lines(int64_t keys) { return (keys + 63) / 64 * 64; }

/// What AttentionGrad reads, and what it keeps in the workspace.
template <class M>
struct GradientOperands {
  Elements dy, q, k, v, y;
  const M *most, *sum;
  M* delta;                    // (batches, M)
  QueryLine* lines = nullptr;  // the same shape; null: not on tensor cores
  uint2* kept = nullptr;       // kept_blocks(), behind a dropout on tensor cores
  KeyLine* keys = nullptr;  // (batches, key_lines()), where all terms are the same for all queries
};

/// What a dropout keeps lies by blocks of 64 keys: of each batch and block a word of 64 bits for
/// each query, an even number of them.
inline constexpr int kKeptKeys = 64;
__host__ __device__ inline int64_t kept_rows(int64_t queries) { return (queries + 1) / 2 * 2; }
__host__ __device__ inline int64_t kept_blocks(int64_t keys) {
  return (keys + kKeptKeys - 1) / kKeptKeys;
}

/// Heads of 16 bits that tensor cores take: the sums of larger ones are too many for registers.
inline bool fits_tensor_cores(const AttentionPlan& plan) {
  return is_16bit_float(plan.dtype) && std::max(plan.d, plan.e) <= 128;
}

/// dQ, dK and dV, as far as they are wanted, on tensor cores; `in.delta` is there.
void tensor_gradients(Stream& stream, const DeviceAttention& p, const GradientOperands<float>& in,
                      const RealOutput& dq, const RealOutput& dk, const RealOutput& dv);

}  // namespace halfnote::HN_CUDA
