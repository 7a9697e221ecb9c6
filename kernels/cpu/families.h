// The kernels of the CPU by family. Each function returns its rows in the order of preference;
// table.cc joins them, the oneDNN rows first.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu {

/// Elementwise ops with broadcasting, Cast, Where and the gradients of ai.halfnote.
std::vector<KernelRow> elementwise_kernels();
/// MatMul, Gemm, convolution and the contractions of ai.halfnote.
std::vector<KernelRow> contraction_kernels();
/// Normalizations and softmax, with their gradients.
std::vector<KernelRow> normalization_kernels();
/// Reduce*, ArgMax/ArgMin, CumSum, TopK and pooling, with its gradients.
std::vector<KernelRow> reduction_kernels();
/// Everything that only moves elements: reshapes, slices, gathers, scatters.
std::vector<KernelRow> movement_kernels();
/// Loss functions and their gradients.
std::vector<KernelRow> loss_kernels();
/// Random numbers, dropout, optimizers, the loss scaler.
std::vector<KernelRow> stateful_kernels();
/// QuantizeLinear, DequantizeLinear and the products of 8-bit operands.
std::vector<KernelRow> quantized_kernels();
/// DFT, STFT and the mel scale.
std::vector<KernelRow> signal_kernels();
/// The fast rows of all families: on oneDNN, and our own vectorised ones (fast/).
std::vector<KernelRow> onednn_kernels();

}  // namespace halfnote::cpu
