// The rules of the stateful rows: dropout, optimizers, and what the loss scaler asks of gradients.
#pragma once

#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::stateful {

// dropout.cc
/// ONNX's Dropout in its inference form; the training form is an error here.
std::vector<Expr> inference_dropout_gradient(GradientContext& rule);
/// The same op on dY: the mask is made again.
std::vector<Expr> dropout_gradient(GradientContext& rule);
std::vector<Expr> dropout_body(BodyContext& body);
/// Bools in the shape of `x`: which elements does the dropout of `ratio` in [0, 1] keep?
Expr kept_elements(Expr x, Expr seed, Expr step, int64_t node, float ratio);
/// What kept elements are multiplied by.
float keep_factor(float ratio);
/// The words of `count` elements as u64 (⌈count/4⌉, 4): of Philox4x32-10, which random.cc's bodies
/// read too.
Expr random_words(Expr count, Expr seed, Expr step, int64_t node);

// random.cc
/// ONNX's random ops as ours, which read a stream.
Expr draw_normal(LowerContext& rule, const RandomStream& stream);
Expr draw_uniform(LowerContext& rule, const RandomStream& stream);
/// Bernoulli and Multinomial from uniform numbers, in f64: so 0 and 1 are certain.
std::vector<Expr> lower_bernoulli(LowerContext& rule);
std::vector<Expr> lower_multinomial(LowerContext& rule);
std::vector<ValueType> infer_random(const Graph& graph, NodeId node);
std::vector<Expr> random_normal_body(BodyContext& body);
std::vector<Expr> random_uniform_body(BodyContext& body);

// optimizers.cc
/// `fresh` where the step commits (input `commit`, if the call has it), else `old`, for each state.
std::vector<Expr> committed(BodyContext& body, size_t commit, const std::vector<Expr>& fresh,
                            const std::vector<Expr>& old);
/// grad + weight_decay·param.
Expr with_decay(Expr grad, Expr param, double weight_decay);
/// Optimizers as device passes call them: behind `commit` two factors of grad, which may be of
/// another type; a 16-bit copy of the new param is the last result (docs/operators.md).
std::vector<ValueType> infer_copy(const Graph& graph, NodeId node, std::vector<ValueType> types);
std::vector<Expr> body_with_copy(BodyContext& body, size_t commit, BodyRule rule);

template <InferRule rule>
std::vector<ValueType> infer_update(const Graph& graph, NodeId node) {
  return infer_copy(graph, node, rule(graph, node));
}

template <int commit, BodyRule rule>
std::vector<Expr> update_body(BodyContext& body) {
  return body_with_copy(body, commit, rule);
}

std::vector<Expr> sgd_body(BodyContext& body);
std::vector<Expr> momentum_body(BodyContext& body);
std::vector<Expr> adam_body(BodyContext& body);
std::vector<Expr> adam_w_body(BodyContext& body);

// optimizers_adaptive.cc
/// The types of param and of the states from input 2 on, as far as they are there, before input
/// `end`.
std::vector<ValueType> infer_states(const Graph& graph, NodeId node, size_t end);
std::vector<ValueType> infer_rmsprop(const Graph& graph, NodeId node);
std::vector<ValueType> infer_adafactor(const Graph& graph, NodeId node);
std::vector<Expr> adagrad_body(BodyContext& body);
std::vector<Expr> rmsprop_body(BodyContext& body);
std::vector<Expr> lion_body(BodyContext& body);
std::vector<Expr> lamb_body(BodyContext& body);
std::vector<Expr> adafactor_body(BodyContext& body);

// scaling.cc
std::vector<ValueType> infer_all_finite(const Graph& graph, NodeId node);
std::vector<ValueType> infer_global_norm(const Graph& graph, NodeId node);
std::vector<Expr> all_finite_body(BodyContext& body);
std::vector<Expr> global_norm_body(BodyContext& body);
std::vector<Expr> update_loss_scale_body(BodyContext& body);

}  // namespace halfnote::stateful
