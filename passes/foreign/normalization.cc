// Foreign normalizations and softmax. Where ONNX Runtime hands the saved statistics to the gradient
// our gradient takes them as they are.
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "passes/foreign/parts.h"
#include "passes/train/step.h"

namespace halfnote::foreign {
namespace {

Attributes axis_of(LowerContext& c, int64_t fallback) {
  return {{"axis", c.attributes().get_int("axis", fallback)}};
}

std::string op_without_13(LowerContext& c) {
  const std::string& op = c.b.graph().node(c.node).op;
  return op.ends_with("_13") ? op.substr(0, op.size() - 3) : op;
}

/// The epsilon in 1/sqrt(mean + epsilon), as simplified_layer_norm makes it.
float epsilon_of(LowerContext& c, Expr inv_std) {
  NodeId node = producer_of(c, inv_std);
  for (const char* op : {"Identity", "Reciprocal", "Sqrt", "Add"}) {
    if (!node.valid()) break;
    if (c.b.graph().node(node).op != op) {
      if (std::string_view(op) == "Identity") continue;
      break;
    }
    if (std::string_view(op) == "Add") {
      const Tensor* epsilon = c.b.graph().constant(c.b.graph().input(node, 1));
      if (epsilon != nullptr && epsilon->size() == 1) {
        return static_cast<float>(epsilon->at_as_double(0));
      }
    }
    node = producer_of(c, c.b.value(c.b.graph().input(node, 0)));
  }
  refuse(c, "its inv_std does not come from a SimplifiedLayerNormalization in the same graph");
}

}  // namespace

Results softmax_grad(LowerContext& c) {
  const Expr dy = require_input(c, 0), y = require_input(c, 1);
  const Attributes axis = {{"axis", normalize_axis(c.attributes().get_int("axis", 1), y.rank())}};
  const Expr flat =
      c.b.op(op_without_13(c), {c.b.op("Flatten", {dy}, axis), c.b.op("Flatten", {y}, axis)},
             {{"axis", int64_t{-1}}}, kHalfnoteDomain);
  return {c.b.reshape(flat, c.b.shape_of(y))};
}

Results softmax_grad_13(LowerContext& c) {
  return {c.b.op(op_without_13(c), {require_input(c, 0), require_input(c, 1)}, axis_of(c, -1),
                 kHalfnoteDomain)};
}

Results layer_norm_grad(LowerContext& c) {
  for (size_t i = 0; i < 5; ++i) require_input(c, i);
  return c.b.ops("LayerNormalizationGrad", c.inputs, 3, axis_of(c, -1), kHalfnoteDomain);
}

/// x̂ = (Y − bias)/scale stands for X, with mean 0 and inv_std 1; the rest is linear in inv_std.
Results invertible_layer_norm_grad(LowerContext& c) {
  Builder& b = c.b;
  const Expr dy = require_input(c, 0), y = require_input(c, 1), scale = require_input(c, 2);
  const Expr bias = require_input(c, 3), inv_std = require_input(c, 4);
  const Expr normalized = (y - bias) / scale;
  const Expr one = b.op("Expand", {b.scalar(inv_std.dtype(), 1), b.shape_of(inv_std)});
  Results grads = b.ops("LayerNormalizationGrad", {dy, normalized, scale, one - one, one}, 3,
                        axis_of(c, -1), kHalfnoteDomain);
  grads[0] = grads[0] * b.cast(inv_std, grads[0].dtype());
  return grads;
}

/// RMSNormalization; its inv_std is spelled out where it is read.
Results simplified_layer_norm(LowerContext& c) {
  Builder& b = c.b;
  const Expr x = require_input(c, 0), scale = require_input(c, 1);
  const int64_t axis = normalize_axis(c.attributes().get_int("axis", -1), x.rank());
  const float epsilon = c.attributes().get_float("epsilon", 1e-5f);
  Results results = {b.op("RMSNormalization", {x, scale}, {{"axis", axis}, {"epsilon", epsilon}}),
                     b.none()};
  if (!c.wants(1)) return results;
  const Expr wide = b.to_math(x);
  const Expr mean = mean_keep(wide * wide, axes_between(axis, x.rank()));
  results[1] = b.op("Reciprocal", {b.op("Sqrt", {mean + static_cast<double>(epsilon)})});
  return results;
}

Results simplified_layer_norm_grad(LowerContext& c) {
  const float epsilon = epsilon_of(c, require_input(c, 3));
  Attributes attributes = axis_of(c, -1);
  attributes.set("epsilon", epsilon);
  return c.b.ops("RMSNormalizationGrad",
                 {require_input(c, 0), require_input(c, 1), require_input(c, 2)}, 2, attributes,
                 kHalfnoteDomain);
}

/// In a training step the running statistics become state, as ONNX Runtime updates them in place.
Results batch_norm_internal(LowerContext& c) {
  Graph& graph = c.b.graph();
  const Attributes attributes = chosen_attributes(c, {"epsilon", "momentum"});
  if (c.attributes().get_int("training_mode", 1) == 0) {
    return {c.b.ops("BatchNormalization", c.inputs, 1, attributes)[0]};
  }
  const Results results = c.b.ops("BatchNormalization", c.inputs, 5, attributes, kHalfnoteDomain);
  if (!find_state(graph, kLossScale)) return results;
  for (size_t i = 1; i <= 2; ++i) {
    const ValueId current = graph.input(c.node, i + 2);
    if (graph.value(current).kind != ValueKind::kInitializer || graph.state_of(current)) continue;
    graph.add_state(current, results[i].id, StateKind::kStatistic);
  }
  return results;
}

Results batch_norm_grad(LowerContext& c) {
  for (size_t i = 0; i < 5; ++i) require_input(c, i);
  return c.b.ops("BatchNormalizationGrad", c.inputs, 3, {}, kHalfnoteDomain);
}

}  // namespace halfnote::foreign
