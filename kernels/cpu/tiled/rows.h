// The rows of our own tiled matrix products.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu::tiled {

/// MatMul and Gemm (matmul.cc) in the forms in which they are faster than oneDNN's.
std::vector<KernelRow> rows();
/// The same in every form, for calls that oneDNN refuses.
std::vector<KernelRow> other_rows();

}  // namespace halfnote::cpu::tiled
