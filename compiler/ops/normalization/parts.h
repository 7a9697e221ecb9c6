// The rules of the normalization rows: inference, gradients and function bodies.
#pragma once

#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::normalization {

// inference.cc
std::vector<ValueType> infer_batch_normalization(const Graph& graph, NodeId node);
std::vector<ValueType> infer_batch_normalization_grad(const Graph& graph, NodeId node);
std::vector<ValueType> infer_layer_normalization(const Graph& graph, NodeId node);
std::vector<ValueType> infer_layer_normalization_grad(const Graph& graph, NodeId node);
std::vector<ValueType> infer_rms_normalization(const Graph& graph, NodeId node);
std::vector<ValueType> infer_rms_normalization_grad(const Graph& graph, NodeId node);
std::vector<ValueType> infer_group_normalization_grad(const Graph& graph, NodeId node);

// gradients.cc
/// ONNX BatchNormalization, in training form through ai.halfnote.BatchNormalization.
std::vector<Expr> batch_normalization_gradient(GradientContext& rule);
/// BatchNormalization of ai.halfnote, which keeps its statistics.
std::vector<Expr> saved_batch_normalization_gradient(GradientContext& rule);
std::vector<Expr> softmax_gradient(GradientContext& rule);
std::vector<Expr> log_softmax_gradient(GradientContext& rule);

// line_gradients.cc: along all dims from an axis on
std::vector<Expr> layer_normalization_gradient(GradientContext& rule);
std::vector<Expr> rms_normalization_gradient(GradientContext& rule);

// group_gradients.cc: over groups of channels, neighbouring channels, any axes
std::vector<Expr> group_normalization_gradient(GradientContext& rule);
std::vector<Expr> instance_normalization_gradient(GradientContext& rule);
std::vector<Expr> lp_normalization_gradient(GradientContext& rule);
std::vector<Expr> lrn_gradient(GradientContext& rule);
std::vector<Expr> mean_variance_normalization_gradient(GradientContext& rule);

// bodies.cc
std::vector<Expr> batch_normalization_body(BodyContext& body);
std::vector<Expr> batch_normalization_grad_body(BodyContext& body);
std::vector<Expr> layer_normalization_body(BodyContext& body);
std::vector<Expr> layer_normalization_grad_body(BodyContext& body);
std::vector<Expr> rms_normalization_body(BodyContext& body);
std::vector<Expr> rms_normalization_grad_body(BodyContext& body);
std::vector<Expr> group_normalization_grad_body(BodyContext& body);
std::vector<Expr> softmax_grad_body(BodyContext& body);
std::vector<Expr> log_softmax_grad_body(BodyContext& body);

}  // namespace halfnote::normalization
