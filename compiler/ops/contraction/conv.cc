// Convolution: its gradient and the bodies of ConvGradInput and ConvGradWeight.
//
// With window (k, stride s, dilation d, pads pb, pe) and group g:
//   dX = ConvTranspose(dY, W) with output_padding = (H + pb + pe − d·(k−1) − 1) mod s; where H is
//        known only when it runs: without pads, s − 1 zeros put behind, rows pb … pb + H cut out
//   dW = Conv over swapped axes: X as (C/g, g·N, H…), dY as the kernel (M, N, oH…), strides d,
//        dilations s, group g; cut to k; (C/g, M, k…) transposed to (M, C/g, k…)
//   db = sum of dY over all axes but 1
#include <algorithm>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/window.h"

namespace halfnote::contraction {
namespace {

Expr swap_first_two(Expr x) {
  std::vector<int64_t> perm = axes_between(0, x.rank());
  std::swap(perm[0], perm[1]);
  return x.builder->transpose(x, std::move(perm));
}

/// The 1-D shape of `head` (0: copy the dim, -1: what is left), then the spatial dims of `x`.
Expr with_spatial_dims(Expr x, std::vector<int64_t> head) {
  Builder& b = *x.builder;
  const Expr spatial = dims_of(x, 2, x.rank());
  const auto numbers = constant_ints(b.graph(), spatial.id);
  if (!numbers) return b.op("Concat", {b.ints(head), spatial}, {{"axis", int64_t{0}}});
  head.insert(head.end(), numbers->begin(), numbers->end());
  return b.ints(head);
}

/// X (N, g·Cg, H…) as (Cg, g·N, H…), the groups kept apart.
Expr channels_as_batch(Expr x, int64_t group) {
  if (group == 1) return swap_first_two(x);
  const Dim batch = x.shape()[0], channels = x.shape()[1];
  if (channels.known() && channels.value % group != 0) {
    throw Error(ErrorCode::kModel, "the channels do not divide into groups")
        .expected("a multiple of " + std::to_string(group), to_string(x.shape()));
  }
  Builder& b = *x.builder;
  // Behind a channel shuffle with an open batch only the run knows the channels.
  const bool known = channels.known();
  const int64_t per_group = known ? channels.value / group : -1;
  const Expr split = b.reshape(x, with_spatial_dims(x, {0, group, per_group}));
  std::vector<int64_t> perm = axes_between(0, split.rank());
  std::swap(perm[0], perm[2]);  // (N, g, Cg) -> (Cg, g, N)
  const int64_t merged = batch.known() ? batch.value * group : -1;
  return b.reshape(b.transpose(split, perm), with_spatial_dims(x, {known ? per_group : 0, merged}));
}

std::vector<int64_t> kernel_of(const SymbolicShape& weight) {
  return require_static(weight, 2, "the kernel of a convolution");
}

/// The rows at the end of X that no window reaches, per axis.
std::vector<int64_t> output_padding_of(const Window& window, const SymbolicShape& x) {
  std::vector<int64_t> surplus;
  for (size_t axis = 0; axis < window.rank(); ++axis) {
    const int64_t padded = x[axis + 2].value + window.begin(axis) + window.end(axis);
    if (padded < window.extent(axis)) {
      throw Error(ErrorCode::kModel, "the kernel is larger than its padded input")
          .expected("at least " + std::to_string(window.extent(axis)), std::to_string(padded));
    }
    surplus.push_back((padded - window.extent(axis)) % window.strides[axis]);
  }
  return surplus;
}

/// The gradient of the padded X cut to X, whose sizes only `shape` knows. Of the rows that no
/// window reaches there are fewer than the stride.
Expr cut_to(Expr padded, Expr shape, const Window& window) {
  Builder& b = *padded.builder;
  const auto rank = static_cast<int64_t>(window.rank());
  const std::vector<int64_t> axes = axes_between(2, 2 + rank);
  std::vector<int64_t> rows(window.rank(), 0);
  for (int64_t stride : window.strides) rows.push_back(stride - 1);
  const Expr reached = b.op("Pad", {padded, b.ints(rows), b.none(), b.ints(axes)});
  const Expr begins = b.ints({window.pads.begin(), window.pads.begin() + rank});
  const Expr sizes = b.op("Slice", {shape, b.ints({2}), b.ints({2 + rank}), b.ints({0})});
  return b.op("Slice", {reached, begins, begins + sizes, b.ints(axes)});
}

/// Where no window fits into X, dY has no place: the gradients are zeros, and the forms above, with
/// dY as a kernel of size 0, are none that ONNX allows. Invalid where dY has places.
Expr zeros_without_places(BodyContext& body) {
  const SymbolicShape& grad = body.inputs[0].shape();
  const ValueType& type = body.output_types[0];
  const bool empty =
      std::any_of(grad.begin() + 2, grad.end(), [](const Dim& d) { return d.is(0); });
  if (!empty || !type.has_concrete_shape()) return body.b.none();
  return body.b.op("ConstantOfShape", {body.b.ints(concrete(*type.shape))},
                   {{"value", Tensor(type.dtype, {1})}});
}

}  // namespace

std::vector<ValueType> infer_conv_grad_input(const Graph& graph, NodeId node) {
  const ValueType& grad = operand_type(graph, node, 0);
  const SymbolicShape& w = operand_shape(graph, node, 1);
  SymbolicShape x = spelled_shape(graph, node, 2);
  if (w.size() != x.size() || x.size() < 3) {
    throw Error(ErrorCode::kModel, "the shape of X has another rank than W")
        .expected(std::to_string(w.size()), std::to_string(x.size()));
  }
  const int64_t group = graph.node(node).attributes.get_int("group", 1);
  if (!x[0].known() && x[0].symbol.empty()) x[0] = operand_shape(graph, node, 0)[0];
  if (!x[1].known() && w[1].known()) x[1] = Dim(checked_mul(w[1].value, group));
  return {ValueType::tensor(grad.dtype, std::move(x))};
}

std::vector<ValueType> infer_conv_grad_weight(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  const SymbolicShape& grad = operand_shape(graph, node, 0);
  const SymbolicShape& x = operand_shape(graph, node, 1);
  const Window window = window_of(attributes, x);
  const int64_t group = attributes.get_int("group", 1);
  if (grad.size() != x.size() || group < 1 || (x[1].known() && x[1].value % group != 0)) {
    throw Error(ErrorCode::kModel, "dY, X and group do not fit each other")
        .expected("equal ranks and channels that divide into " + std::to_string(group) + " groups",
                  to_string(grad) + " and " + to_string(x));
  }
  SymbolicShape w = {grad[1], x[1].known() ? Dim(x[1].value / group) : Dim()};
  for (int64_t size : window.kernel) w.push_back(Dim(size));
  const DType dtype = out_dtype_of(attributes, operand_type(graph, node, 0).dtype);
  return {ValueType::tensor(dtype, std::move(w))};
}

std::vector<Expr> conv_grad_input_body(BodyContext& body) {
  if (const Expr zeros = zeros_without_places(body); zeros.valid()) return {zeros};
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  const Expr w = b.to_math(body.inputs[1]);
  const SymbolicShape x = body.output_types[0].shape.value_or(SymbolicShape{});
  const Window window = window_of(body.attributes, x, kernel_of(w.shape()));
  Attributes attributes = window.attributes();
  attributes.set("group", body.attributes.get_int("group", 1));
  const bool fixed = std::all_of(x.begin() + 2, x.end(), [](const Dim& d) { return d.known(); });
  if (fixed) attributes.set("output_padding", output_padding_of(window, x));
  if (!fixed) attributes.set("pads", std::vector<int64_t>(2 * window.rank(), 0));
  const Expr dx = b.op("ConvTranspose", {grad, w}, std::move(attributes));
  const Expr result = fixed ? dx : cut_to(dx, body.inputs[2], window);
  return {b.cast(result, body.output_types[0].dtype)};
}

std::vector<Expr> conv_grad_weight_body(BodyContext& body) {
  if (const Expr zeros = zeros_without_places(body); zeros.valid()) return {zeros};
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  const Expr x = b.to_math(body.inputs[1]);
  const int64_t group = body.attributes.get_int("group", 1);
  const Window window = window_of(body.attributes, x.shape());

  const Expr swapped_x = channels_as_batch(x, group);
  const Expr swapped_grad = swap_first_two(grad);
  Attributes attributes = {{"strides", window.dilations},
                           {"dilations", window.strides},
                           {"pads", window.pads},
                           {"group", group}};
  const Expr full = b.op("Conv", {swapped_x, swapped_grad}, std::move(attributes));
  if (!full.type().shape) {  // ONNX infers nothing from a kernel of unknown size, which dY is here
    SymbolicShape open = {swapped_x.shape()[0], swapped_grad.shape()[0]};
    open.resize(2 + window.rank());
    b.graph().value(full.id).type = ValueType::tensor(full.dtype(), std::move(open));
  }
  // Rows of X that no window reaches give surplus taps beyond k.
  const auto rank = static_cast<int64_t>(window.rank());
  const Expr cut = b.op("Slice", {full, b.ints(std::vector<int64_t>(window.rank(), 0)),
                                  b.ints(window.kernel), b.ints(axes_between(2, 2 + rank))});
  return {b.cast(swap_first_two(cut), body.output_types[0].dtype)};
}

std::vector<Expr> conv_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr grad = rule.grads[0], x = rule.inputs[0], w = rule.inputs[1];
  const Window window = window_of(rule.attributes(), x.shape(), kernel_of(w.shape()));
  Attributes attributes = window.attributes();
  attributes.set("group", rule.attributes().get_int("group", 1));

  std::vector<Expr> results(rule.inputs.size(), b.none());
  if (rule.needed[0]) {
    results[0] = b.op("ConvGradInput", {grad, w, b.shape_of(x)}, attributes, kHalfnoteDomain);
  }
  if (rule.needed[1]) results[1] = b.op("ConvGradWeight", {grad, x}, attributes, kHalfnoteDomain);
  if (results.size() > 2 && rule.needed[2]) {
    results[2] = b.reduce_sum(grad, axes_but_channel(grad.rank()), false);
  }
  return results;
}

}  // namespace halfnote::contraction
