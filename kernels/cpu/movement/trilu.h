// What Trilu does, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace halfnote::cpu {

struct TriluPlan {
  bool upper = true;
  int64_t rows = 1, columns = 1;  // of each matrix

  /// Is element (row, column) kept, and not 0, by a triangle that begins at this diagonal?
  HN_HD bool keeps(int64_t row, int64_t column, int64_t diagonal) const {
    // Beyond this, all or nothing is kept; the bound keeps the sum below from overflowing.
    const int64_t limit = rows + columns;
    diagonal = diagonal < -limit ? -limit : diagonal > limit ? limit : diagonal;
    return upper ? column >= row + diagonal : column <= row + diagonal;
  }
};

/// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that do
/// not fit.
std::string plan_trilu(const KernelCall& call, TriluPlan& plan);

}  // namespace halfnote::cpu
