// The shapes of a program's call, for every device.
#pragma once

#include <string>

#include "base/ops/pointwise.h"
#include "kernels/kernel.h"

namespace halfnote::cpu::pointwise {

/// The dims of all elements: those of the outputs, and with a sum, which may be the only output,
/// those of the inputs. Throws Error(kModel) if these do not broadcast.
Shape elements_of(const PointwiseProgram& program, const KernelCall& call);

/// The elements as the rows of a matrix, whose columns are summed.
struct SummedShape {
  int64_t rows = 0, columns = 0;
};
SummedShape summed_shape(const Shape& elements, size_t dims);

/// Why the shapes of the outputs do not fit the program, or an empty string.
std::string unfit_outputs(const PointwiseProgram& program, const KernelCall& call);

}  // namespace halfnote::cpu::pointwise
