// The rules of the contraction rows: inference, gradients and function bodies.
#pragma once

#include <vector>

#include "base/ops/recurrence.h"
#include "compiler/ops/operator.h"

namespace halfnote::contraction {

// matmul.cc
std::vector<ValueType> infer_matmul(const Graph& graph, NodeId node);
std::vector<ValueType> infer_gemm(const Graph& graph, NodeId node);
std::vector<Expr> matmul_body(BodyContext& body);
std::vector<Expr> gemm_body(BodyContext& body);
/// ONNX MatMul of all ranks, 1-D operands included.
std::vector<Expr> matmul_gradient(GradientContext& rule);
/// MatMul of ai.halfnote with its transpose flags.
std::vector<Expr> transposed_matmul_gradient(GradientContext& rule);
/// Gemm of either domain.
std::vector<Expr> gemm_gradient(GradientContext& rule);

// conv.cc
std::vector<ValueType> infer_conv_grad_input(const Graph& graph, NodeId node);
std::vector<ValueType> infer_conv_grad_weight(const Graph& graph, NodeId node);
std::vector<Expr> conv_grad_input_body(BodyContext& body);
std::vector<Expr> conv_grad_weight_body(BodyContext& body);
std::vector<Expr> conv_gradient(GradientContext& rule);

// conv_transpose.cc
std::vector<Expr> conv_transpose_gradient(GradientContext& rule);

// recurrent.cc
/// RNN, GRU and LSTM of ai.halfnote, by the name of the node.
std::vector<ValueType> infer_recurrent(const Graph& graph, NodeId node);
std::vector<ValueType> infer_recurrent_grad(const Graph& graph, NodeId node);
/// RNN, GRU and LSTM of either domain.
std::vector<Expr> recurrent_gradient(GradientContext& rule);

// recurrent_bodies.cc, recurrent_grad_bodies.cc
std::vector<Expr> recurrent_body(BodyContext& body, RecurrentOp op);
std::vector<Expr> recurrent_grad_body(BodyContext& body, RecurrentOp op);
template <RecurrentOp op>
std::vector<Expr> recurrent_body(BodyContext& body) {
  return recurrent_body(body, op);
}
template <RecurrentOp op>
std::vector<Expr> recurrent_grad_body(BodyContext& body) {
  return recurrent_grad_body(body, op);
}

// fused_attention.cc: Attention and AttentionGrad of ai.halfnote
std::vector<ValueType> infer_attention(const Graph& graph, NodeId node);
std::vector<ValueType> infer_attention_grad(const Graph& graph, NodeId node);
std::vector<Expr> attention_body(BodyContext& body);
std::vector<Expr> attention_grad_body(BodyContext& body);

// epilogues.cc: products of ai.halfnote that make something of their sums
std::vector<ValueType> infer_gemm_activation(const Graph& graph, NodeId node);
std::vector<ValueType> infer_gemm_activation_grad(const Graph& graph, NodeId node);
std::vector<ValueType> infer_gemm_sums(const Graph& graph, NodeId node);
std::vector<Expr> gemm_activation_body(BodyContext& body);
std::vector<Expr> gemm_activation_grad_body(BodyContext& body);
std::vector<Expr> gemm_sums_body(BodyContext& body);

// equal_dims.cc
/// MatMul and Gemm of either domain.
std::vector<EqualDims> equal_matmul_dims(const Graph& graph, NodeId node);
std::vector<EqualDims> equal_conv_dims(const Graph& graph, NodeId node);
/// ConvTranspose, and ConvGradInput, whose operands are the same.
std::vector<EqualDims> equal_conv_transpose_dims(const Graph& graph, NodeId node);
std::vector<EqualDims> equal_recurrent_dims(const Graph& graph, NodeId node);

// flops.cc
double matmul_flops(const Attributes&, std::span<const Shape> inputs,
                    std::span<const Shape> outputs);
double conv_flops(const Attributes&, std::span<const Shape> inputs, std::span<const Shape> outputs);
/// ConvTranspose too, whose operand is the result of a convolution.
double conv_grad_input_flops(const Attributes&, std::span<const Shape> inputs,
                             std::span<const Shape> outputs);
double conv_grad_weight_flops(const Attributes&, std::span<const Shape> inputs,
                              std::span<const Shape> outputs);
double attention_flops(const Attributes&, std::span<const Shape> inputs,
                       std::span<const Shape> outputs);
double attention_grad_flops(const Attributes&, std::span<const Shape> inputs,
                            std::span<const Shape> outputs);
double recurrent_flops(const Attributes&, std::span<const Shape> inputs,
                       std::span<const Shape> outputs);
double recurrent_grad_flops(const Attributes&, std::span<const Shape> inputs,
                            std::span<const Shape> outputs);

// attention.cc
std::vector<Expr> lower_attention(LowerContext& rule);
std::vector<Expr> lower_rotary_embedding(LowerContext& rule);

// einsum.cc
std::vector<Expr> lower_einsum(LowerContext& rule);

// deform_conv.cc
std::vector<Expr> lower_deform_conv(LowerContext& rule);

}  // namespace halfnote::contraction
