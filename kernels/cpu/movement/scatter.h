// What ScatterElements and ScatterND do, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/cpu/runs.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

enum class ScatterReduction { kNone, kAdd, kMul, kMax, kMin };

struct ScatterElementsPlan {
  ScatterReduction reduction = ScatterReduction::kNone;
  Runs runs;                   // over the updates: the element of the data at index 0
  int64_t dim = 0, along = 1;  // of the data's axis: its size, and its stride
  int64_t own_rows = 1;        // leading positions that no two threads share
};

struct ScatterNdPlan {
  ScatterReduction reduction = ScatterReduction::kNone;
  Shape dims;                     // that an index names
  int64_t tuples = 0, inner = 1;  // indices, and elements that each stands for
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that
/// do not fit.
std::string plan_scatter_elements(const KernelCall& call, ScatterElementsPlan& plan);
std::string plan_scatter_nd(const KernelCall& call, ScatterNdPlan& plan);

}  // namespace halfnote::cpu
