// The rules of the contraction rows: inference, gradients and function bodies.
#pragma once

#include <vector>

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

// attention.cc
std::vector<Expr> lower_attention(LowerContext& rule);
std::vector<Expr> lower_rotary_embedding(LowerContext& rule);

// einsum.cc
std::vector<Expr> lower_einsum(LowerContext& rule);

}  // namespace halfnote::contraction
