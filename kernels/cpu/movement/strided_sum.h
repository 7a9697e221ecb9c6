// What AddStrided does, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/cpu/reduction/window.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// X as images of `size` and the part that is added to every stride-th pixel of each dim, with one
/// to three spatial dims (padded with leading ones to three).
struct StridedSum {
  int64_t planes = 0, channels = 1;  // N·C, and C
  PoolGeometry::Dims size{1, 1, 1}, part{1, 1, 1}, strides{1, 1, 1};

  int64_t pixels() const { return size[0] * size[1] * size[2]; }
  int64_t part_pixels() const { return part[0] * part[1] * part[2]; }
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that do
/// not fit.
std::string plan_strided_sum(const KernelCall& call, StridedSum& plan);

/// Only X may lie where Y does.
bool strided_sum_in_place(size_t input, size_t output);

}  // namespace halfnote::cpu
