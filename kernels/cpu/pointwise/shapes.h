// The shapes of a program's call, for every device.
#pragma once

#include <string>

#include "base/ops/pointwise.h"
#include "kernels/kernel.h"

namespace halfnote::cpu::pointwise {

/// The dims of all elements: those of the outputs, and with a sum, which may be the only output,
/// those of the inputs. Throws Error(kModel) if these do not broadcast.
Shape elements_of(const PointwiseProgram& program, const KernelCall& call);

/// The elements as a matrix, whose columns are summed, or whose rows.
struct SummedShape {
  int64_t rows = 0, columns = 0;
  bool along_rows = false;

  int64_t results() const { return along_rows ? rows : columns; }
  /// Elements of a sum.
  int64_t summed() const { return along_rows ? columns : rows; }
};
SummedShape summed_shape(const Shape& elements, const PointwiseSum& sum);

/// Why the shapes of the outputs do not fit the program, or an empty string.
std::string unfit_outputs(const PointwiseProgram& program, const KernelCall& call);

}  // namespace halfnote::cpu::pointwise
