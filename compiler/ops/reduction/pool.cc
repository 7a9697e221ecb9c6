// Max and average pooling: their gradients and the bodies of MaxPoolGrad and AveragePoolGrad.
//
//   MaxPoolGrad:      dY added at the Indices of MaxPool(X), which are flat over all of X
//   AveragePoolGrad:  ConvTranspose(dY / count, ones), count the elements of each window that are
//   averaged
#include <algorithm>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/window.h"

namespace halfnote::reduction {
namespace {

/// The attributes of a pooling node with its window spelled out.
Attributes pool_attributes(const Attributes& forward, const SymbolicShape& x) {
  Attributes attributes = window_of(forward, x).attributes();
  for (const char* name : {"ceil_mode", "count_include_pad"}) {
    const int64_t value = forward.get_int(name, 0);
    if (value != 0) attributes.set(name, value);
  }
  return attributes;
}

/// How many elements window `output` of one axis averages. Windows of ceil_mode that reach beyond
/// the padded input count only what lies within.
int64_t window_count(const Window& window, size_t axis, int64_t input, int64_t output,
                     bool include_pad) {
  const int64_t low = include_pad ? -window.begin(axis) : 0;
  const int64_t high = include_pad ? input + window.end(axis) : input;
  const int64_t start = output * window.strides[axis] - window.begin(axis);
  int64_t count = 0;
  for (int64_t tap = 0; tap < window.kernel[axis]; ++tap) {
    const int64_t at = start + tap * window.dilations[axis];
    count += at >= low && at < high;
  }
  return count;
}

}  // namespace

Tensor window_weights(const Window& window, const std::vector<int64_t>& input,
                      const std::vector<int64_t>& output, bool include_pad) {
  Shape shape = {1, 1};
  shape.insert(shape.end(), output.begin(), output.end());
  Tensor weights(DType::kF64, shape);
  const auto data = weights.mutable_data<double>();
  const Shape strides = strides_of(shape);
  for (size_t i = 0; i < data.size(); ++i) {
    int64_t count = 1;
    for (size_t axis = 0; axis < window.rank(); ++axis) {
      const int64_t at = static_cast<int64_t>(i) / strides[axis + 2] % output[axis];
      count *= window_count(window, axis, input[axis], at, include_pad);
    }
    data[i] = 1.0 / static_cast<double>(std::max<int64_t>(count, 1));
  }
  return weights;
}

namespace {

/// Attributes of the ConvTranspose that adds the windows back into an input of size `input`: the
/// part that it would write beyond the end is cut off by pads, the part that no window reaches is
/// filled by output_padding.
Attributes spread_attributes(const Window& window, const std::vector<int64_t>& input,
                             const std::vector<int64_t>& output) {
  std::vector<int64_t> pads = window.pads, output_padding;
  for (size_t axis = 0; axis < window.rank(); ++axis) {
    const int64_t full = window.strides[axis] * (output[axis] - 1) + window.extent(axis);
    const int64_t surplus = full - window.begin(axis) - input[axis];
    pads[window.rank() + axis] = std::max<int64_t>(surplus, 0);
    output_padding.push_back(std::max<int64_t>(-surplus, 0));
  }
  Attributes attributes = window.attributes();
  attributes.set("pads", std::move(pads));
  attributes.set("output_padding", std::move(output_padding));
  return attributes;
}

/// (N, C, spatial…) as (N·C, 1, spatial…).
Expr one_channel(Expr x, const std::vector<int64_t>& spatial) {
  std::vector<int64_t> shape = {-1, 1};
  const Dim batch = x.shape()[0], channels = x.shape()[1];
  if (batch.known() && channels.known()) shape[0] = checked_mul(batch.value, channels.value);
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  return reshape_exactly(x, x.builder->ints(shape));
}

}  // namespace

std::vector<ValueType> infer_max_pool_grad(const Graph& graph, NodeId node) {
  operand_type(graph, node, 0);
  window_of(graph.node(node).attributes, operand_shape(graph, node, 1));
  return {operand_type(graph, node, 1)};
}

SymbolicShape pooled_operand(const Graph& graph, NodeId node, size_t index) {
  SymbolicShape x = spelled_shape(graph, node, index);
  const SymbolicShape& y = operand_shape(graph, node, 0);
  if (y.size() != x.size() || x.size() < 3) {
    throw Error(ErrorCode::kModel, "the shape of X has another rank than dY")
        .expected(std::to_string(y.size()), std::to_string(x.size()));
  }
  for (size_t i = 0; i < 2; ++i) {  // N and C are those of dY
    if (!x[i].known() && x[i].symbol.empty()) x[i] = y[i];
  }
  return x;
}

std::vector<ValueType> infer_average_pool_grad(const Graph& graph, NodeId node) {
  const ValueType& grad = operand_type(graph, node, 0);
  return {ValueType::tensor(grad.dtype, pooled_operand(graph, node, 1))};
}

std::vector<Expr> max_pool_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0];
  return {rule.b.op("MaxPoolGrad", {rule.grads[0], x},
                    pool_attributes(rule.attributes(), x.shape()), kHalfnoteDomain)};
}

std::vector<Expr> average_pool_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0];
  return {rule.b.op("AveragePoolGrad", {rule.grads[0], rule.b.shape_of(x)},
                    pool_attributes(rule.attributes(), x.shape()), kHalfnoteDomain)};
}

std::vector<Expr> max_pool_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  const Expr x = b.to_math(body.inputs[1]);
  const Expr indices = b.ops("MaxPool", {x}, 2, pool_attributes(body.attributes, x.shape()))[1];

  const Expr flat = b.ints({-1});
  const Expr shape = b.shape_of(x);
  const Expr size = x.type().has_concrete_shape() ? b.ints({element_count(concrete(x.shape()))})
                                                  : b.reshape(b.op("Size", {x}), b.ints({1}));
  // A window that lies in the padding altogether has no maximum: index -1.
  const Expr none = b.scalar(DType::kI64, 0);
  const Expr reached = mask_zero(b.op("GreaterOrEqual", {indices, none}), grad);
  const Expr places = b.reshape(b.op("Max", {indices, none}), flat);
  const Expr sum =
      b.op("ScatterElements", {zeros(x.dtype(), size), places, b.reshape(reached, flat)},
           {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  return {b.cast(reshape_exactly(sum, shape), body.output_types[0].dtype)};
}

std::vector<Expr> average_pool_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  constexpr const char* kWhat = "the body of AveragePoolGrad";
  const SymbolicShape x = body.output_types[0].shape.value_or(SymbolicShape{});
  const std::vector<int64_t> input = require_static(x, 2, kWhat);
  const std::vector<int64_t> output = require_static(grad.shape(), 2, kWhat);
  const Window window = window_of(body.attributes, x);
  const bool include_pad = body.attributes.get_int("count_include_pad", 0) != 0;

  const Tensor weights = window_weights(window, input, output, include_pad);
  const Expr shares = grad * b.constant(weights.cast_to(grad.dtype()), "inverse_count");
  Shape ones = {1, 1};
  ones.insert(ones.end(), window.kernel.begin(), window.kernel.end());
  const Expr spread =
      b.op("ConvTranspose",
           {one_channel(shares, output), b.constant(Tensor::full(grad.dtype(), ones, 1), "ones")},
           spread_attributes(window, input, output));
  return {b.cast(reshape_exactly(spread, body.inputs[1]), body.output_types[0].dtype)};
}

}  // namespace halfnote::reduction
