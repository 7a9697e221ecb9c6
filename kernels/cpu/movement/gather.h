// What GatherElements and GatherND do, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/cpu/runs.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

struct GatherElementsPlan {
  Runs runs;                   // over the indices: the element of the data at index 0
  int64_t dim = 0, along = 1;  // of the data's axis: its size, and its stride
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that
/// do not fit.
std::string plan_gather_elements(const KernelCall& call, GatherElementsPlan& plan);

struct GatherNdPlan {
  Shape dims;                      // of the data that a tuple of indices goes into
  int64_t tuples = 1, inner = 1;   // of a batch; elements that a tuple names
  int64_t batches = 1, batch = 1;  // and elements of the data in each
};

std::string plan_gather_nd(const KernelCall& call, GatherNdPlan& plan);

/// Elements of `inner` at each step and batch, and how far apart those of neighbours are.
struct ReversePlan {
  int64_t steps = 0, batches = 0, inner = 1;
  int64_t time_stride = 0, batch_stride = 0;
};

std::string plan_reverse_sequence(const KernelCall& call, ReversePlan& plan);

}  // namespace halfnote::cpu
