// Resize: its gradient, and the body of ResizeGrad: a product with a constant matrix for each axis
// that the op resizes.
#include "base/ops/resample.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::reduction {
namespace {

const Tensor* constant_operand(GradientContext& rule, size_t index, bool& computed) {
  if (index >= rule.inputs.size() || !rule.inputs[index].valid()) return nullptr;
  const Tensor* tensor = rule.graph().constant(rule.inputs[index].id);
  computed = computed || tensor == nullptr;
  return tensor != nullptr && tensor->size() > 0 ? tensor : nullptr;
}

std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    numbers.push_back(static_cast<float>(tensor.at_as_double(i)));
  }
  return numbers;
}

ResizeOperands operands_of(const Attributes& attributes) {
  ResizeOperands operands;
  for (const float x : attributes.get_floats("roi")) operands.roi.push_back(x);
  for (const float x : attributes.get_floats("scales")) operands.scales.push_back(x);
  operands.sizes = attributes.get_ints("sizes");
  return operands;
}

/// The (output, input) matrix of one axis.
Tensor matrix_of(const Taps& taps) {
  Tensor matrix(DType::kF64, {taps.outputs(), taps.inputs});
  const auto to = matrix.mutable_data<double>();
  for (int64_t row = 0; row < taps.outputs(); ++row) {
    const auto end = static_cast<size_t>(taps.starts[static_cast<size_t>(row) + 1]);
    for (auto k = static_cast<size_t>(taps.starts[static_cast<size_t>(row)]); k < end; ++k) {
      to[static_cast<size_t>(row * taps.inputs + taps.sources[k])] += taps.weights[k];
    }
  }
  return matrix;
}

/// The sizes of X and dY as numbers: symbolic dims must be those of axes that stay.
std::pair<Shape, Shape> numbers_of(const SymbolicShape& x, const SymbolicShape& y) {
  std::pair<Shape, Shape> numbers;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool stays = !y[i].known() && (x[i].known() || x[i].same_as(y[i]));
    if (!stays && !(x[i].known() && y[i].known())) {
      throw Error(ErrorCode::kUnsupported, "the body of ResizeGrad needs fixed sizes")
          .expected("numbers in the dims that are resized", to_string(x) + " to " + to_string(y))
          .hint("fix the symbolic dims with --dim NAME=N");
    }
    numbers.first.push_back(x[i].known() ? x[i].value : 1);
    numbers.second.push_back(stays ? numbers.first.back() : y[i].value);
  }
  return numbers;
}

}  // namespace

PrecisionClass resize_class(const Node& node) {
  // What is outside is a number of its own there.
  const bool crops = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") ==
                     "tf_crop_and_resize";
  const bool moves = !crops && node.attributes.get_string("mode", "nearest") == "nearest";
  return moves ? PrecisionClass::kClear : PrecisionClass::kFp32;
}

std::vector<Expr> resize_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  Attributes attributes = rule.attributes();
  bool computed = false;
  if (const Tensor* roi = constant_operand(rule, 1, computed)) {
    attributes.set("roi", floats_of(*roi));
  }
  if (const Tensor* scales = constant_operand(rule, 2, computed)) {
    attributes.set("scales", floats_of(*scales));
  }
  if (const Tensor* sizes = constant_operand(rule, 3, computed)) {
    attributes.set("sizes", sizes->to_ints());
  }
  if (computed) {
    throw Error(ErrorCode::kUnsupported, "roi, scales or sizes of Resize are computed by the model")
        .expected("constants", "values that depend on an input")
        .hint("fix the symbolic dims with --dim NAME=N, so that they fold");
  }
  const Expr dx = b.op("ResizeGrad", {rule.grads[0], b.shape_of(rule.inputs[0])},
                       std::move(attributes), kHalfnoteDomain);
  std::vector<Expr> results(rule.inputs.size(), b.none());
  results[0] = dx;
  b.graph().value(dx.id).type = rule.inputs[0].type();
  return results;
}

std::vector<ValueType> infer_resize(const Graph& graph, NodeId node) {
  ValueType y = graph.value(graph.output(node)).type;
  const ValueType& x = operand_type(graph, node, 0);
  const Tensor* scales = nullptr;
  if (graph.input(node, 2).valid()) scales = graph.constant(graph.input(node, 2));
  if (!y.shape || !x.shape || y.rank() != x.rank()) return {y};
  const auto rank = static_cast<int64_t>(x.shape->size());
  const auto axes = graph.node(node).attributes.get_ints("axes", axes_between(0, rank));
  std::vector<bool> stays(x.shape->size(), true);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    stays[static_cast<size_t>(normalize_axis(axes[i], rank))] =
        scales != nullptr && at < scales->size() && scales->at_as_double(at) == 1;
  }
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i] && !(*y.shape)[i].known()) (*y.shape)[i] = (*x.shape)[i];
  }
  return {y};
}

std::vector<ValueType> infer_resize_grad(const Graph& graph, NodeId node) {
  const ValueType& grad = operand_type(graph, node, 0);
  SymbolicShape x = spelled_shape(graph, node, 1);
  const SymbolicShape& y = operand_shape(graph, node, 0);
  if (x.size() != y.size()) {
    throw Error(ErrorCode::kModel, "the shape of X has another rank than dY")
        .expected(std::to_string(y.size()), std::to_string(x.size()));
  }
  return {ValueType::tensor(grad.dtype, std::move(x))};
}

std::vector<Expr> resize_grad_body(BodyContext& body) {
  Builder& b = body.b;
  Expr grad = b.to_math(body.inputs[0]);
  const SymbolicShape x = body.output_types[0].shape.value_or(SymbolicShape{});
  const auto [from, to] = numbers_of(x, grad.shape());
  const auto axes = resized_axes(body.attributes, operands_of(body.attributes), from, to);
  for (const AxisResize& axis : axes) {
    std::vector<int64_t> perm = axes_between(0, static_cast<int64_t>(x.size()));
    std::swap(perm[axis.axis], perm.back());
    const Tensor matrix = matrix_of(resize_taps(body.attributes, axis)).cast_to(grad.dtype());
    const bool is_last = axis.axis + 1 == x.size();
    if (!is_last) grad = b.transpose(grad, perm);
    grad = b.op("MatMul", {grad, b.constant(matrix, "weights")});
    if (!is_last) grad = b.transpose(grad, perm);  // a swap undoes itself
  }
  return {b.cast(grad, body.output_types[0].dtype)};
}

}  // namespace halfnote::reduction
