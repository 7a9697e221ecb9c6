// The rules behind the table of foreign ops, and what they share.
#pragma once

#include <string>
#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::foreign {

using Results = std::vector<Expr>;

// --- shared (foreign_ops.cc) ---

/// Input `index`; throws Error(kUnsupported) if the node leaves it out.
Expr require_input(const LowerContext& c, size_t index);
/// Input `index`, or none.
Expr input_or_none(const LowerContext& c, size_t index);
/// Throws Error(kUnsupported) with the node's place.
[[noreturn]] void refuse(const LowerContext& c, const std::string& why);
/// The attributes of the node with these names.
Attributes chosen_attributes(LowerContext& c, std::initializer_list<const char*> names);
/// The gradient of an ONNX op by its own rule: the forward node is made again from `inputs`, its
/// first result gets the gradient `dy`. Gives the gradients of the inputs marked in `needed`; the
/// forward node goes where the rule does not read it.
Results gradient_of(LowerContext& c, std::string_view op, Attributes attributes,
                    const std::vector<Expr>& inputs, Expr dy, const std::vector<bool>& needed);
/// A value of the shape that the int64 value `shape` spells: the one it is the Shape of, or zeros.
Expr shaped_as(LowerContext& c, Expr shape, DType dtype);
/// The node that makes a value; invalid for inputs and initializers.
NodeId producer_of(const LowerContext& c, Expr value);

// --- elementwise.cc ---
Results same_gradient(LowerContext& c);  // ReluGrad, SigmoidGrad, …: (dY, S), ours has the name
Results leaky_relu_grad(LowerContext& c);
Results gelu(LowerContext& c);       // Gelu, BiasGelu
Results fast_gelu(LowerContext& c);  // with the bias as an optional operand
Results quick_gelu(LowerContext& c);
Results gelu_grad(LowerContext& c);  // GeluGrad, BiasGeluGrad_dX
Results fast_gelu_grad(LowerContext& c);
Results quick_gelu_grad(LowerContext& c);
Results div_grad(LowerContext& c);
Results scale(LowerContext& c);
Results batch_scale(LowerContext& c);
Results scaled_sum(LowerContext& c);
Results fake_quant(LowerContext& c);
Results fake_quant_grad(LowerContext& c);
Results pass_through(LowerContext& c);
Results group(LowerContext& c);
Results all_l2(LowerContext& c);
Results all_finite(LowerContext& c);
Results is_finite(LowerContext& c);
Results all_true(LowerContext& c);

// --- contraction.cc ---
Results fused_matmul(LowerContext& c);
Results conv_grad(LowerContext& c);
Results conv_transpose_grad(LowerContext& c);
Results lstm_training(LowerContext& c);
Results lstm_grad(LowerContext& c);
Results gru_training(LowerContext& c);
Results gru_grad(LowerContext& c);

// --- normalization.cc ---
Results softmax_grad(LowerContext& c);     // the older form: 2-D at its axis
Results softmax_grad_13(LowerContext& c);  // LogSoftmaxGrad_13 too
Results layer_norm_grad(LowerContext& c);
Results invertible_layer_norm_grad(LowerContext& c);
Results simplified_layer_norm(LowerContext& c);
Results simplified_layer_norm_grad(LowerContext& c);
Results batch_norm_internal(LowerContext& c);
Results batch_norm_grad(LowerContext& c);

// --- pooling.cc ---
Results max_pool_grad(LowerContext& c);
Results average_pool_grad(LowerContext& c);
Results resize_grad(LowerContext& c);

// --- movement.cc ---
Results gather_grad(LowerContext& c);
Results gather_elements_grad(LowerContext& c);
Results gather_nd_grad(LowerContext& c);
Results slice_grad(LowerContext& c);
Results broadcast_gradient_args(LowerContext& c);
Results reduce_sum_training(LowerContext& c);
Results split_training(LowerContext& c);
Results concat_training(LowerContext& c);
Results flatten_and_unpad(LowerContext& c);
Results pad_and_unflatten(LowerContext& c);

// --- loss.cc ---
Results loss_internal(LowerContext& c);  // SoftmaxCrossEntropyLossInternal and its NLL kin
Results softmax_cross_entropy_loss_grad(LowerContext& c);
Results softmax_cross_entropy_loss_internal_grad(LowerContext& c);
Results softmax_cross_entropy(LowerContext& c);         // labels one-hot
Results sparse_softmax_cross_entropy(LowerContext& c);  // labels as indices
Results softmax_cross_entropy_grad(LowerContext& c);
Results sparse_softmax_cross_entropy_grad(LowerContext& c);

// --- preview.cc: ai.onnx.preview.training ---
Results preview_adam(LowerContext& c);
Results preview_adagrad(LowerContext& c);
Results preview_momentum(LowerContext& c);

// --- dropout.cc ---
Results dropout_grad(LowerContext& c);
Results bitmask_dropout(LowerContext& c);
Results bias_softmax_dropout(LowerContext& c);
Results softmax_dropout_grad(LowerContext& c);

}  // namespace halfnote::foreign
