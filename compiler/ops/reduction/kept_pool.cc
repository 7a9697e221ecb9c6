// MaxPool and MaxPoolTapsGrad of ai.halfnote: a maximum that notes which tap of each window it is,
// with the Relu behind it; NormalizedMaxPoolGrad, where a BatchNormalization stood before it. The
// passes keep-taps and pool-before-norm make them for a device, behind everything that asks for
// gradients or precision.
//
//   taps: the place within its window of the index that ONNX's MaxPool gives for X, or for X times
//         the signs of `scale`; Y is X there
//   dX:   dY added at the places that the taps name, in each plane; the gradient of the
//         normalization, of which that is dY
#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/ops/taps.h"
#include "compiler/ir/model.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/window.h"

namespace halfnote::reduction {
namespace {

/// The type of the taps of windows of this shape.
ValueType taps_type(const SymbolicShape& windows) {
  SymbolicShape taps = windows;
  std::rotate(taps.begin() + 1, taps.begin() + 2, taps.end());
  return ValueType::tensor(DType::kU8, std::move(taps));
}

/// `numbers` of axis `axis` as a constant to be broadcast against (N, C, results…).
Expr along(Builder& b, std::vector<int64_t> numbers, size_t axis, size_t rank) {
  Shape shape(rank + 2, 1);
  shape[axis + 2] = static_cast<int64_t>(numbers.size());
  return b.constant(Tensor::of<int64_t>(std::move(shape), numbers));
}

/// Where the windows of an axis begin.
Expr starts(Builder& b, const Window& window, size_t axis, int64_t results) {
  std::vector<int64_t> at;
  for (int64_t i = 0; i < results; ++i) at.push_back(i * window.strides[axis] - window.begin(axis));
  return along(b, std::move(at), axis, window.rank());
}

/// `b.op` of integers with a number.
Expr with_number(std::string_view op, Expr x, int64_t number) {
  return x.builder->op(op, {x, x.builder->scalar(DType::kI64, static_cast<double>(number))});
}

/// Steps from an index to the next one of each axis.
std::vector<int64_t> steps_of(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> steps(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) steps[i - 1] = steps[i] * sizes[i];
  return steps;
}

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t all = 1;
  for (const int64_t size : sizes) all = checked_mul(all, size);
  return all;
}

/// X times the signs of the channels' numbers (operand 1); all alike where that is 0 or NaN.
Expr turned_by_signs(BodyContext& body, Expr x) {
  Builder& b = body.b;
  const Expr scale = per_channel(body.inputs[1], x.rank()), zero = b.scalar(scale.dtype(), 0);
  const Expr rises = b.op("Greater", {scale, zero}), falls = b.op("Less", {scale, zero});
  return mask_zero(b.op("Or", {rises, falls}), where(falls, -x, x));
}

/// Where ONNX's MaxPool found its maxima, X itself; -Inf where a window has no element.
Expr elements_at(Expr x, Expr indices) {
  Builder& b = *x.builder;
  const Expr none = b.scalar(DType::kI64, 0), flat = b.reshape(x, b.ints({-1}));
  const Expr found = b.op("Gather", {flat, b.op("Max", {indices, none})});
  const double lowest = -std::numeric_limits<double>::infinity();
  return where(b.op("GreaterOrEqual", {indices, none}), found, b.scalar(x.dtype(), lowest));
}

/// Operand `index` must be one number a channel, in full precision.
void require_channel(const Graph& graph, NodeId node, size_t index, size_t of) {
  const ValueType& type = operand_type(graph, node, index);
  const ValueType wanted = ValueType::tensor(math_dtype(operand_type(graph, node, of).dtype),
                                             {operand_shape(graph, node, of)[1]});
  if (type.dtype == wanted.dtype && may_be_alike(operand_shape(graph, node, index), *wanted.shape))
    return;
  throw Error(ErrorCode::kModel, "operand " + std::to_string(index) + " is no number a channel")
      .expected(to_string(wanted), to_string(type));
}

void require_taps(const Graph& graph, NodeId node) {
  const ValueType &taps = operand_type(graph, node, 1),
                  wanted = taps_type(operand_shape(graph, node, 0));
  if (taps.dtype == wanted.dtype && may_be_alike(operand_shape(graph, node, 1), *wanted.shape))
    return;
  throw Error(ErrorCode::kModel, "the taps do not fit dY")
      .expected(to_string(wanted), to_string(taps));
}

/// dY (operand 0) at the places that the taps (operand 1) name, of X with these sizes.
Expr spread_to_taps(BodyContext& body, const SymbolicShape& x, Expr sizes) {
  Builder& b = body.b;
  constexpr const char* kWhat = "the body of a MaxPool's gradient";
  const Expr grad = b.to_math(body.inputs[0]);
  const std::vector<int64_t> input = require_static(x, 2, kWhat),
                             output = require_static(grad.shape(), 2, kWhat);
  const Window window = window_of(body.attributes, x);
  const std::vector<int64_t> steps = steps_of(input), tap_steps = steps_of(window.kernel);
  const Expr tap = b.cast(channels_second(body.inputs[1]), DType::kI64);
  Expr place;
  for (size_t axis = 0; axis < window.rank(); ++axis) {
    const Expr of_axis =
        with_number("Mod", with_number("Div", tap, tap_steps[axis]), window.kernel[axis]);
    const Expr at =
        with_number("Mul", of_axis, window.dilations[axis]) + starts(b, window, axis, output[axis]);
    const Expr part = with_number("Mul", at, steps[axis]);
    place = place.valid() ? place + part : part;
  }
  const Expr has_tap = b.op("Less", {tap, b.scalar(DType::kI64, int64_t{kNoTap})});
  const Expr none = b.scalar(DType::kI64, 0);
  const Expr planes = dims_of(grad, 0, 2), flat = b.ints({product(output)});
  const Expr rows = b.op("Concat", {planes, flat}, {{"axis", int64_t{0}}});
  const Expr sums = b.op("ScatterElements",
                         {zeros(grad.dtype(), b.op("Concat", {planes, b.ints({product(input)})},
                                                   {{"axis", int64_t{0}}})),
                          reshape_exactly(where(has_tap, place, none), rows),
                          reshape_exactly(mask_zero(has_tap, grad), rows)},
                         {{"axis", int64_t{2}}, {"reduction", std::string("add")}});
  return reshape_exactly(sums, sizes);
}

}  // namespace

std::vector<ValueType> infer_kept_max_pool(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  const ValueType& x = operand_type(graph, node, 0);
  const SymbolicShape& shape = operand_shape(graph, node, 0);
  const Window window = window_of(attributes, shape);
  const bool ceil = attributes.get_int("ceil_mode", 0) != 0;
  SymbolicShape y = {shape[0], shape[1]};
  for (size_t axis = 0; axis < window.rank(); ++axis)
    y.push_back(window.results(axis, shape[axis + 2], ceil));
  const ValueType taps = taps_type(y);
  const auto inputs = graph.inputs(node);
  if (inputs.size() > 1 && inputs[1].valid()) require_channel(graph, node, 1, 0);
  return {ValueType::tensor(x.dtype, std::move(y)), taps};
}

std::vector<ValueType> infer_max_pool_taps_grad(const Graph& graph, NodeId node) {
  const ValueType& grad = operand_type(graph, node, 0);
  require_taps(graph, node);
  SymbolicShape x = pooled_operand(graph, node, 2);
  window_of(graph.node(node).attributes, x);
  return {ValueType::tensor(grad.dtype, std::move(x))};
}

std::vector<ValueType> infer_normalized_max_pool_grad(const Graph& graph, NodeId node) {
  constexpr size_t kX = 2, kChannels = 8;  // operands from X up to these are numbers a channel
  require_taps(graph, node);
  const SymbolicShape &x = operand_shape(graph, node, kX), &dy = operand_shape(graph, node, 0);
  if (operand_type(graph, node, kX).dtype != operand_type(graph, node, 0).dtype ||
      x.size() != dy.size()) {
    throw Error(ErrorCode::kModel, "X of NormalizedMaxPoolGrad does not fit dY")
        .expected(to_string(operand_type(graph, node, 0)),
                  to_string(operand_type(graph, node, kX)));
  }
  for (size_t i = kX + 1; i < kChannels; ++i) require_channel(graph, node, i, kX);
  window_of(graph.node(node).attributes, x);
  return {operand_type(graph, node, kX)};
}

std::vector<Expr> kept_max_pool_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr x = b.to_math(body.inputs[0]);
  const std::vector<int64_t> input = require_static(x.shape(), 2, "the body of MaxPool");
  const Window window = window_of(body.attributes, x.shape());
  Attributes attributes = window.attributes();
  if (const int64_t ceil = body.attributes.get_int("ceil_mode", 0); ceil != 0)
    attributes.set("ceil_mode", ceil);
  const bool has_scale = body.inputs.size() > 1 && body.inputs[1].valid();
  const Expr counted = has_scale ? turned_by_signs(body, x) : x;
  const std::vector<Expr> maxima = b.ops("MaxPool", {counted}, 2, std::move(attributes));
  const std::vector<int64_t> steps = steps_of(input), tap_steps = steps_of(window.kernel);
  const Expr place = with_number("Mod", maxima[1], product(input));  // in its plane
  Expr tap;
  for (size_t axis = 0; axis < window.rank(); ++axis) {
    const Expr at = with_number("Mod", with_number("Div", place, steps[axis]), input[axis]);
    const Expr begin = starts(b, window, axis, maxima[0].shape()[axis + 2].value);
    const Expr of_axis = with_number("Div", at - begin, window.dilations[axis]);
    const Expr part = with_number("Mul", of_axis, tap_steps[axis]);
    tap = tap.valid() ? tap + part : part;
  }
  const bool relu = body.attributes.get_string("activation", "") == "Relu";
  const Expr most = has_scale ? elements_at(x, maxima[1]) : maxima[0];
  const Expr y = relu ? b.op("Relu", {most}) : most;
  const Expr has_tap = relu ? b.op("Greater", {y, b.scalar(y.dtype(), 0)})
                            : b.op("GreaterOrEqual", {maxima[1], b.scalar(DType::kI64, 0)});
  const Expr kept = where(has_tap, tap, b.scalar(DType::kI64, int64_t{kNoTap}));
  return {b.cast(y, body.output_types[0].dtype), channels_last(b.cast(kept, DType::kU8))};
}

std::vector<Expr> max_pool_taps_grad_body(BodyContext& body) {
  const SymbolicShape x = body.output_types[0].shape.value_or(SymbolicShape{});
  return {body.b.cast(spread_to_taps(body, x, body.inputs[2]), body.output_types[0].dtype)};
}

std::vector<Expr> normalized_max_pool_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr x = b.to_math(body.inputs[2]);
  const int rank = x.rank();
  const auto channel = [&](size_t i) { return per_channel(body.inputs[i], rank); };
  const Expr scale = channel(3), mean = channel(4), inv_std = channel(5);
  std::vector<int64_t> axes = {0};
  for (int64_t axis = 2; axis < rank; ++axis) axes.push_back(axis);
  const Expr count = count_along(x, axes, x.dtype());
  const Expr normalized = (x - mean) * inv_std;
  const Expr dy = spread_to_taps(body, x.shape(), b.shape_of(body.inputs[2]));
  const Expr centred = dy - channel(7) / count - normalized * (channel(6) / count);
  return {b.cast(scale * inv_std * centred, body.output_types[0].dtype)};
}

}  // namespace halfnote::reduction
