#include <algorithm>

#include "base/error.h"
#include "compiler/ops/normalization/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::normalization {
namespace {

/// The type of a statistic or parameter, one number a channel: f32, f64 where X is f64. Operands
/// from `first` on must have it.
ValueType channel_type(const Graph& graph, NodeId node, size_t x_index, size_t first) {
  const SymbolicShape& x = operand_shape(graph, node, x_index);
  if (x.size() < 2) {
    throw Error(ErrorCode::kModel, "BatchNormalization needs a channel dim")
        .expected("rank 2 or more", to_string(x));
  }
  const DType dtype = math_dtype(operand_type(graph, node, x_index).dtype);
  for (size_t i = first; i < 5; ++i) {
    const DType got = operand_type(graph, node, i).dtype;
    if (got == dtype) continue;
    throw Error(ErrorCode::kModel, "parameters and statistics are not in full precision")
        .expected(std::string(short_name(dtype)) + " operand " + std::to_string(i),
                  std::string(short_name(got)))
        .hint("keep scale, bias, mean and variance of BatchNormalization in f32");
  }
  return ValueType::tensor(dtype, {x[1]});
}

bool has_norm_operand(const Graph& graph, NodeId node, size_t index) {
  return index < graph.inputs(node).size() && graph.input(node, index).valid();
}

/// A bit for each element: those of all channels of a pixel side by side, eight a byte.
ValueType signs_type(const Graph& graph, NodeId node, size_t x_index) {
  const SymbolicShape& x = operand_shape(graph, node, x_index);
  if (!x[1].known() || x[1].value % 8 != 0) {
    throw Error(ErrorCode::kModel, "signs of Y are bytes for 8 channels")
        .expected("a multiple of 8 channels", to_string(x));
  }
  SymbolicShape signs = {x[0]};
  signs.insert(signs.end(), x.begin() + 2, x.end());
  signs.emplace_back(x[1].value / 8);
  return ValueType::tensor(DType::kU8, signs);
}

/// An optional operand must have the type and the shape of operand `like`.
void require_alike(const Graph& graph, NodeId node, size_t index, size_t like) {
  if (!has_norm_operand(graph, node, index)) return;
  const ValueType &type = operand_type(graph, node, index),
                  &wanted = operand_type(graph, node, like);
  if (type.dtype == wanted.dtype && may_be_alike(operand_shape(graph, node, index), *wanted.shape))
    return;
  throw Error(ErrorCode::kModel,
              "operand " + std::to_string(index) + " of a normalization does not fit")
      .expected(to_string(wanted), to_string(type));
}

/// An optional operand must be one number a channel.
void require_channel(const Graph& graph, NodeId node, size_t index, const ValueType& channel,
                     const std::string& what) {
  if (!has_norm_operand(graph, node, index)) return;
  const ValueType& type = operand_type(graph, node, index);
  if (type.dtype == channel.dtype &&
      may_be_alike(operand_shape(graph, node, index), *channel.shape))
    return;
  throw Error(ErrorCode::kModel, what + " is no number a channel")
      .expected(to_string(channel), to_string(type));
}

/// Without one the normalization is that of ONNX.
void require_residual(const Graph& graph, NodeId node, size_t index) {
  if (!has_norm_operand(graph, node, index))
    throw Error(ErrorCode::kModel, "a normalization of a sum lacks the residual")
        .expected("operand " + std::to_string(index), "none");
  require_alike(graph, node, index, 0);
}

}  // namespace

std::vector<ValueType> infer_batch_normalization(const Graph& graph, NodeId node) {
  const ValueType channel = channel_type(graph, node, 0, 1);
  const std::string activation = graph.node(node).attributes.get_string("activation", "");
  if (!activation.empty() && activation != "Relu") {
    throw Error(ErrorCode::kModel, "unknown value of attribute \"activation\"")
        .expected("Relu, or none", "\"" + activation + "\"");
  }
  require_alike(graph, node, 5, 0);
  for (size_t i = 6; i < 10; ++i)
    require_channel(graph, node, i, channel,
                    "a part of the line of a BatchNormalization's residual");
  std::vector<ValueType> types = {operand_type(graph, node, 0), channel, channel, channel, channel};
  if (graph.outputs(node).size() > types.size()) types.push_back(signs_type(graph, node, 0));
  return types;
}

std::vector<ValueType> infer_batch_normalization_grad(const Graph& graph, NodeId node) {
  const ValueType channel = channel_type(graph, node, 1, 2);
  require_alike(graph, node, 5, 1);
  require_alike(graph, node, 6, 1);
  require_channel(graph, node, 7, channel, "B of BatchNormalizationGrad");
  if (has_norm_operand(graph, node, 8)) {
    const ValueType wanted = signs_type(graph, node, 1);
    if (operand_type(graph, node, 8).dtype != wanted.dtype ||
        !may_be_alike(operand_shape(graph, node, 8), *wanted.shape)) {
      throw Error(ErrorCode::kModel, "the signs of BatchNormalizationGrad do not fit")
          .expected(to_string(wanted), to_string(operand_type(graph, node, 8)));
    }
  }
  require_alike(graph, node, 9, 1);
  for (size_t i = 10; i < 13; ++i)
    require_channel(graph, node, i, channel, "a parameter of BatchNormalizationGrad's second norm");
  const ValueType& x = operand_type(graph, node, 1);
  return {x, channel, channel, x, x, channel, channel};
}

std::vector<ValueType> infer_layer_normalization(const Graph& graph, NodeId node) {
  require_residual(graph, node, 3);
  const ValueType& x = operand_type(graph, node, 0);
  const auto rank = static_cast<int64_t>(operand_shape(graph, node, 0).size());
  const int64_t axis = normalize_axis(graph.node(node).attributes.get_int("axis", -1), rank);
  SymbolicShape lines = *x.shape;
  std::fill(lines.begin() + axis, lines.end(), Dim(1));
  const ValueType statistic = ValueType::tensor(math_dtype(x.dtype), lines);
  return {x, statistic, statistic, x};
}

std::vector<ValueType> infer_rms_normalization(const Graph& graph, NodeId node) {
  require_residual(graph, node, 2);
  const ValueType& x = operand_type(graph, node, 0);
  return {ValueType::tensor(operand_type(graph, node, 1).dtype, *x.shape), x};
}

std::vector<ValueType> infer_layer_normalization_grad(const Graph& graph, NodeId node) {
  require_alike(graph, node, 5, 1);
  require_alike(graph, node, 6, 1);
  const Attributes& attributes = graph.node(node).attributes;
  const ValueType& x = operand_type(graph, node, 1);
  const auto rank = static_cast<int64_t>(operand_shape(graph, node, 1).size());
  const int64_t axis = normalize_axis(attributes.get_int("axis", -1), rank);
  const SymbolicShape normalized(x.shape->begin() + axis, x.shape->end());
  const ValueType parameter = ValueType::tensor(out_dtype_of(attributes, x.dtype), normalized);
  return {x, parameter, parameter};
}

std::vector<ValueType> infer_rms_normalization_grad(const Graph& graph, NodeId node) {
  require_alike(graph, node, 3, 1);
  require_alike(graph, node, 4, 1);
  const Attributes& attributes = graph.node(node).attributes;
  const ValueType& x = operand_type(graph, node, 1);
  const auto rank = static_cast<int64_t>(operand_shape(graph, node, 1).size());
  const int64_t axis = normalize_axis(attributes.get_int("axis", -1), rank);
  const SymbolicShape normalized(x.shape->begin() + axis, x.shape->end());
  return {x, ValueType::tensor(out_dtype_of(attributes, x.dtype), normalized)};
}

std::vector<ValueType> infer_group_normalization_grad(const Graph& graph, NodeId node) {
  const ValueType& x = operand_type(graph, node, 1);
  const SymbolicShape& shape = operand_shape(graph, node, 1);
  if (shape.size() < 2) {
    throw Error(ErrorCode::kModel, "GroupNormalizationGrad needs a channel dim")
        .expected("rank 2 or more", to_string(shape));
  }
  const DType dtype = out_dtype_of(graph.node(node).attributes, x.dtype);
  const ValueType parameter = ValueType::tensor(dtype, {shape[1]});
  return {x, parameter, parameter};
}

}  // namespace halfnote::normalization
