// Which matrices the batch dims of a product pair, as a kernel's argument.
#pragma once

#include <string>

#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/cpu/runs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// The strides of an operand's matrices over the batch dims of the result.
inline Shape batch_strides(const Shape& batch) {
  Shape strides = strides_of(batch);
  for (size_t d = 0; d < batch.size(); ++d) {
    if (batch[d] == 1) strides[d] = 0;
  }
  return strides;
}

/// For each matrix of the result, which one of A and of B it is made from; a reason if there are
/// too many dims.
inline std::string plan_batches(const cpu::MatmulPlan& plan, Strided<2>& batches) {
  const Runs runs =
      cpu::plan_runs(plan.y_batch, {batch_strides(plan.a_batch), batch_strides(plan.b_batch)});
  return as_strided(runs, batches) ? "" : too_many_dims();
}

}  // namespace halfnote::HN_CUDA
