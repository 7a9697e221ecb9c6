// The rows of convolutions with few channels at one end.
#pragma once

#include "kernels/cpu/support.h"
#include "kernels/layout.h"

namespace halfnote::cpu::thin {

std::vector<KernelRow> few_results_rows();    // few_results.cc: Conv, ConvTranspose, gradient of X
std::vector<KernelRow> few_positions_rows();  // few_positions.cc: Conv, gradients
std::vector<KernelRow> swapped_rows();  // swapped.cc: gradients of convolutions of few filters

}  // namespace halfnote::cpu::thin
