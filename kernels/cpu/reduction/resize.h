// What Resize and its gradient do, checked: for the kernels of every device.
#pragma once

#include <string>
#include <vector>

#include "base/ops/resample.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// One axis of a tensor (outer, axis, inner).
struct ResizePass {
  Taps taps;
  size_t axis = 0;
  int64_t outer = 1, inner = 1;

  int64_t results() const { return outer * taps.outputs() * inner; }
};

/// One axis after the other; without passes the result is the operand.
struct ResizePlan {
  std::vector<ResizePass> passes;
  double extrapolation = 0;
  int64_t size = 0;  // of the operand

  /// Elements of the two buffers between the passes: pass i writes to number i % 2.
  int64_t between(size_t buffer) const;
};

// Each gives the reason why the operands have no kernel, or an empty string; Error(kModel) for
// operands that do not fit.

std::string plan_resize(const KernelCall& call, ResizePlan& plan);
std::string plan_resize_grad(const KernelCall& call, ResizePlan& plan);

}  // namespace halfnote::cpu
