// The oneDNN rows, file by file.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu::onednn {

std::vector<KernelRow> matmul_rows();  // matmul.cc: MatMul, Gemm
std::vector<KernelRow> conv_rows();  // conv.cc: Conv, ConvTranspose, ConvGradInput, ConvGradWeight
std::vector<KernelRow> average_pool_rows();  // average_pool.cc: AveragePool and its gradient
std::vector<KernelRow> softmax_rows();       // softmax.cc: Softmax, LogSoftmax and their gradients

}  // namespace halfnote::cpu::onednn
