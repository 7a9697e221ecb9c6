// The rows of the elementwise family, file by file.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> unary_rows();   // unary.cu: one float operand, and gradients
std::vector<KernelRow> binary_rows();  // binary.cu: two operands that broadcast
std::vector<KernelRow> select_rows();  // select.cu: Where, Clip, Cast
std::vector<KernelRow> chain_rows();   // chain.cu: whole programs of elementwise ops
std::vector<KernelRow> logic_rows();   // logic.cu: tests, integers; Max, Min, Sum, Mean

}  // namespace halfnote::HN_CUDA
