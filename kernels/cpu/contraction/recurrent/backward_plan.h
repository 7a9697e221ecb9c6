// What one call of a recurrent gradient op needs: its products, and the places of its workspace.
#pragma once

#include <string>
#include <vector>

#include "kernels/cpu/contraction/recurrent/plan.h"
#include "kernels/cpu/contraction/recurrent/product.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

/// Row blocks of R that take one product with the state: rows [first, first + width).
struct Side {
  int64_t first = 0, width = 0;
  bool own = false;            // its da is not that of the side of W
  size_t math = 0, typed = 0;  // (T·B, width) in the workspace
};

struct BackwardCall {
  RecurrentPlan p;
  RecurrentGradSlots slots;
  DType type = DType::kF32, p_type = DType::kUndefined;
  std::vector<DType> input_types, output_types;
  size_t element = 4;  // bytes of an element of X
  int threads = 1;

  /// One side; two for a GRU that resets first: z and r, then the last gate.
  std::vector<Side> sides;
  InnerProduct input_x, weight_w;                    // da·W, daᵀ·X
  std::vector<InnerProduct> product_back, weight_r;  // a side each: da·R of a step, daᵀ·state
  size_t x = 0, da = 0, da_typed = 0, old_state = 0, reset_state = 0, dh = 0, dc = 0, c0 = 0,
         back = 0, reset_back = 0, peepholes = 0, dx = 0, dx_one = 0, sums = 0, scratch = 0,
         product = 0;

  bool lstm() const { return p.r.op == RecurrentOp::kLstm; }
  bool gru() const { return p.r.op == RecurrentOp::kGru; }
  bool resets_first() const { return gru() && !p.r.linear_before_reset; }
};

/// Fills `b`, whose plan is set; the reason if a product has no kernel.
std::string lay_out_backward(const KernelCall& call, std::string_view only, DType math,
                             BackwardCall& b, WorkspacePlan& workspace);

}  // namespace halfnote::cpu
