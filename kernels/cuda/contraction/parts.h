// Rows of the contraction family that stand in files of their own.
#pragma once

#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

// Conv, ConvTranspose and the gradients of Conv: by the library, and where that has no plan.
std::vector<KernelRow> conv_library_rows();        // conv_library.cu
std::vector<KernelRow> conv_rows();                // conv.cu
std::vector<KernelRow> deform_conv_rows();         // deform_conv.cu: DeformConv
std::vector<KernelRow> determinant_rows();         // determinant.cu: Det
std::vector<KernelRow> epilogue_rows();            // epilogues.cu: Gemms with epilogues
std::vector<KernelRow> plain_product_rows();       // plain_product.cu: odd types of products
std::vector<KernelRow> recurrent_forward_rows();   // recurrent/forward.cu: RNN, GRU, LSTM
std::vector<KernelRow> recurrent_gradient_rows();  // recurrent/backward.cu: their gradients

}  // namespace halfnote::HN_CUDA
