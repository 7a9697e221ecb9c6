// What a MatMul or Gemm call computes, whatever kernel does it: Y[b] = op(A[a(b)])·op(B[b(b)]) for
// every batch b.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu {

struct MatmulPlan {
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  /// For each matrix of Y, which matrix of A and of B it is made from (batch dims broadcast).
  std::vector<int64_t> a_of, b_of;
  int64_t a_count = 0, b_count = 0;  // matrices in A and in B
  Shape a_batch, b_batch, y_batch;   // batch dims, all of the rank of y_batch
  // Gemm: Y = alpha·product + beta·C; element (i, j) of C is at i·c_row + j·c_column.
  // With beta 0 there is no C.
  float alpha = 1, beta = 1;
  bool has_c = false;
  int64_t c_row = 0, c_column = 0;

  int64_t batches() const { return static_cast<int64_t>(a_of.size()); }
};

/// ONNX's MatMul (1-D operands included) and that of ai.halfnote; throws Error(kModel) if the
/// shapes do not fit.
MatmulPlan plan_matmul(const KernelCall& call);
/// ONNX's Gemm and that of ai.halfnote; throws Error(kModel) if the shapes do not fit.
MatmulPlan plan_gemm(const KernelCall& call);

/// The same product with fewer batches where that is possible: a stack of A times one B is one tall
/// product.
MatmulPlan as_one_product(MatmulPlan plan);

}  // namespace halfnote::cpu
