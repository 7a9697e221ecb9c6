// The rules of the loss rows: inference, gradients and function bodies.
#pragma once

#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::loss {

std::vector<ValueType> infer_nll_grad(const Graph& graph, NodeId node);
/// Asks the forward for log_prob, its second output.
std::vector<Expr> softmax_cross_entropy_gradient(GradientContext& rule);
std::vector<ValueType> infer_loss_and_grad(const Graph& graph, NodeId node);
std::vector<Expr> nll_gradient(GradientContext& rule);
std::vector<Expr> softmax_cross_entropy_grad_body(BodyContext& body);
std::vector<Expr> loss_and_grad_body(BodyContext& body);
std::vector<Expr> nll_grad_body(BodyContext& body);
std::vector<ValueType> infer_count_correct(const Graph& graph, NodeId node);
std::vector<Expr> count_correct_body(BodyContext& body);

}  // namespace halfnote::loss
