// The rows of the elementwise family, file by file.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu {

std::vector<KernelRow>
unary_rows();  // unary.cc: formulas of kernels/math/elementwise.h and their gradients
std::vector<KernelRow>
integer_rows();  // integer.cc: unary ops on integers, bool, and tests for NaN and Inf
std::vector<KernelRow> binary_rows();    // binary.cc: arithmetic, comparison, logic and bits
std::vector<KernelRow> variadic_rows();  // variadic.cc: Min, Max, Sum, Mean
std::vector<KernelRow> select_rows();    // select.cc: Where, Clip, ClipGrad
std::vector<KernelRow> cast_rows();      // cast.cc: Cast, CastLike

}  // namespace halfnote::cpu
