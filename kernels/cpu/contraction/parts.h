// The rows of the contraction family, file by file.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu {

std::vector<KernelRow> matmul_rows();     // matmul.cc: MatMul, Gemm, plain and of ai.halfnote
std::vector<KernelRow> conv_rows();       // conv.cc: Conv, ConvTranspose
std::vector<KernelRow> conv_grad_rows();  // conv_grad.cc: ConvGradInput, ConvGradWeight
// recurrent/forward.cc: RNN, GRU, LSTM, plain and of ai.halfnote
std::vector<KernelRow> recurrent_rows();
// recurrent/backward.cc: RNNGrad, GRUGrad, LSTMGrad
std::vector<KernelRow> recurrent_grad_rows();

std::vector<KernelRow> attention_rows();    // attention/reference.cc: Attention of ai.halfnote
std::vector<KernelRow> determinant_rows();  // determinant.cc: Det
// epilogues.cc: GemmActivation, GemmActivationGrad, GemmSums
std::vector<KernelRow> epilogue_rows();
std::vector<KernelRow> deform_conv_rows();  // deform_conv.cc: DeformConv

}  // namespace halfnote::cpu
