// The rules of the reduction and pooling rows: inference, gradients and function bodies.
#pragma once

#include <vector>

#include "compiler/ops/operator.h"
#include "compiler/ops/window.h"

namespace halfnote::reduction {

// reduce.cc
std::vector<Expr> reduce_sum_gradient(GradientContext& rule);
/// Of our ReduceSum, whose axes are an attribute.
std::vector<ValueType> infer_own_sum(const Graph& graph, NodeId node);
std::vector<Expr> own_sum_body(BodyContext& body);
std::vector<Expr> reduce_mean_gradient(GradientContext& rule);
/// ReduceMax and ReduceMin: equal extremes share the gradient.
std::vector<Expr> reduce_extreme_gradient(GradientContext& rule);
std::vector<Expr> reduce_l1_gradient(GradientContext& rule);
std::vector<Expr> reduce_l2_gradient(GradientContext& rule);
std::vector<Expr> reduce_log_sum_gradient(GradientContext& rule);
std::vector<Expr> reduce_log_sum_exp_gradient(GradientContext& rule);
std::vector<Expr> reduce_sum_square_gradient(GradientContext& rule);
std::vector<Expr> reduce_prod_gradient(GradientContext& rule);
std::vector<Expr> cum_sum_gradient(GradientContext& rule);
/// Det: dY times the cofactors, which singular matrices have too.
std::vector<Expr> det_gradient(GradientContext& rule);
std::vector<Expr> global_average_pool_gradient(GradientContext& rule);
std::vector<Expr> global_max_pool_gradient(GradientContext& rule);

// pool.cc
/// 1/count of every window as a constant (1, 1, oH…) of f64 numbers, for operands and results of
/// these spatial sizes.
Tensor window_weights(const Window& window, const std::vector<int64_t>& input,
                      const std::vector<int64_t>& output, bool include_pad);
/// The shape of X that operand `index` of a pool's gradient spells, N and C being those of dY.
SymbolicShape pooled_operand(const Graph& graph, NodeId node, size_t index);
std::vector<ValueType> infer_max_pool_grad(const Graph& graph, NodeId node);
std::vector<ValueType> infer_average_pool_grad(const Graph& graph, NodeId node);
std::vector<Expr> max_pool_gradient(GradientContext& rule);
std::vector<Expr> average_pool_gradient(GradientContext& rule);
std::vector<Expr> max_pool_grad_body(BodyContext& body);
std::vector<Expr> average_pool_grad_body(BodyContext& body);

// kept_pool.cc
std::vector<ValueType> infer_kept_max_pool(const Graph& graph, NodeId node);
std::vector<ValueType> infer_max_pool_taps_grad(const Graph& graph, NodeId node);
std::vector<Expr> kept_max_pool_body(BodyContext& body);
std::vector<Expr> max_pool_taps_grad_body(BodyContext& body);
std::vector<ValueType> infer_normalized_max_pool_grad(const Graph& graph, NodeId node);
std::vector<Expr> normalized_max_pool_grad_body(BodyContext& body);

// resize.cc
/// To the nearest element it moves bits; its gradient adds a few of them up in full precision, as
/// that of a MaxPool.
PrecisionClass resize_class(const Node& node);
std::vector<Expr> resize_gradient(GradientContext& rule);
/// Dims that are not resized are those of X, symbols too.
std::vector<ValueType> infer_resize(const Graph& graph, NodeId node);
std::vector<ValueType> infer_resize_grad(const Graph& graph, NodeId node);
std::vector<Expr> resize_grad_body(BodyContext& body);

// grid_sample.cc
std::vector<Expr> lower_affine_grid(LowerContext& rule);
std::vector<Expr> lower_grid_sample(LowerContext& rule);

// roi_align.cc
std::vector<Expr> roi_align_gradient(GradientContext& rule);
std::vector<ValueType> infer_roi_align_grad(const Graph& graph, NodeId node);
std::vector<Expr> roi_align_grad_body(BodyContext& body);

// unpool.cc
std::vector<Expr> lower_col2im(LowerContext& rule);
/// The size that operand 2 states, which the schema leaves open.
std::vector<ValueType> infer_max_unpool(const Graph& graph, NodeId node);
std::vector<Expr> lower_max_unpool(LowerContext& rule);
std::vector<Expr> lower_global_lp_pool(LowerContext& rule);
std::vector<Expr> lp_pool_gradient(GradientContext& rule);
std::vector<Expr> top_k_gradient(GradientContext& rule);

}  // namespace halfnote::reduction
