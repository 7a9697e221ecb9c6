// Gradients of ops that move elements, and the helpers of ONNX Runtime's gradient builder. These
// gradients are given the shape of X instead of X: see `shaped_as`.
#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "passes/foreign/parts.h"

namespace halfnote::foreign {
namespace {

Attributes axis_of(LowerContext& c) { return {{"axis", c.attributes().get_int("axis", 0)}}; }

/// The length of `x` along `axis` as a 1-D int64 value.
Expr length_along(Expr x, int64_t axis) { return dims_of(x, axis, axis + 1); }

/// Axes of `own` (right-aligned with `other`) along which it was broadcast.
std::vector<int64_t> broadcast_axes(LowerContext& c, const SymbolicShape& own,
                                    const SymbolicShape& other) {
  const size_t rank = std::max(own.size(), other.size());
  std::vector<int64_t> axes;
  for (size_t i = 0; i < rank; ++i) {
    const bool missing = i < rank - own.size();
    const bool alone = i < rank - other.size();
    if (!missing && alone) continue;
    if (missing || own[i - (rank - own.size())].is(1)) {
      axes.push_back(static_cast<int64_t>(i));
      continue;
    }
    const Dim& a = own[i - (rank - own.size())];
    const Dim& b = other[i - (rank - other.size())];
    if (a.known() || b.is(1) || a.same_as(b)) continue;
    refuse(c, "symbolic dims leave open which axes were broadcast (fix them with --dim)");
  }
  return axes;
}

}  // namespace

Results gather_grad(LowerContext& c) {
  const Expr dy = require_input(c, 2);
  const Expr data = shaped_as(c, require_input(c, 0), dy.dtype());
  return {gradient_of(c, "Gather", axis_of(c), {data, require_input(c, 1)}, dy, {true, false})[0]};
}

Results gather_elements_grad(LowerContext& c) {
  const Expr dy = require_input(c, 0);
  const Expr data = shaped_as(c, require_input(c, 1), dy.dtype());
  return {gradient_of(c, "GatherElements", axis_of(c), {data, require_input(c, 2)}, dy,
                      {true, false})[0]};
}

Results gather_nd_grad(LowerContext& c) {
  const Expr dy = require_input(c, 2);
  const Expr data = shaped_as(c, require_input(c, 0), dy.dtype());
  const Attributes attributes = {{"batch_dims", c.attributes().get_int("batch_dims", 0)}};
  return {
      gradient_of(c, "GatherND", attributes, {data, require_input(c, 1)}, dy, {true, false})[0]};
}

/// dY, shape, starts, ends, axes?, steps?
Results slice_grad(LowerContext& c) {
  const Expr dy = require_input(c, 0);
  std::vector<Expr> inputs = {shaped_as(c, require_input(c, 1), dy.dtype())};
  for (size_t i = 2; i < c.inputs.size(); ++i) inputs.push_back(c.inputs[i]);
  std::vector<bool> needed(inputs.size(), false);
  needed[0] = true;
  return {gradient_of(c, "Slice", {}, inputs, dy, needed)[0]};
}

/// Constants: the shapes are known by their dims or symbols.
Results broadcast_gradient_args(LowerContext& c) {
  Graph& graph = c.b.graph();
  const SymbolicShape a = spelled_shape(graph, c.node, 0), b = spelled_shape(graph, c.node, 1);
  return {c.b.ints(broadcast_axes(c, a, b)), c.b.ints(broadcast_axes(c, b, a))};
}

Results reduce_sum_training(LowerContext& c) {
  return c.b.ops("ReduceSum", c.inputs, 1,
                 chosen_attributes(c, {"keepdims", "noop_with_empty_axes"}));
}

Results split_training(LowerContext& c) {
  return c.b.ops("Split", c.inputs, static_cast<int>(c.wanted.size()), axis_of(c));
}

Results concat_training(LowerContext& c) {
  Results results = c.b.ops("Concat", c.inputs, 1, axis_of(c));
  if (!c.wants(1)) return results;
  const int64_t axis =
      normalize_axis(c.attributes().get_int("axis", 0), require_input(c, 0).rank());
  std::vector<Expr> lengths;
  for (const Expr& input : c.inputs) lengths.push_back(length_along(input, axis));
  results.push_back(c.b.ops("Concat", lengths, 1, {{"axis", int64_t{0}}})[0]);
  return results;
}

/// x (M1, M2, …), indices (K) -> rows `indices` of x as (M1·M2, …); (M1, M2).
Results flatten_and_unpad(LowerContext& c) {
  Builder& b = c.b;
  const Expr x = require_input(c, 0);
  const Expr rest = dims_of(x, 2, x.rank());
  const Expr rows = b.reshape(x, b.op("Concat", {b.ints({-1}), rest}, {{"axis", int64_t{0}}}));
  return {b.op("Gather", {rows, require_input(c, 1)}, {{"axis", int64_t{0}}}), dims_of(x, 0, 2)};
}

/// The reverse: rows are put at their indices in zeros (M1·M2, …), given as (M1, M2, …).
Results pad_and_unflatten(LowerContext& c) {
  Builder& b = c.b;
  const Expr x = require_input(c, 0), dims = require_input(c, 2);
  const Expr rest = dims_of(x, 1, x.rank());
  const Attributes along = {{"axis", int64_t{0}}};
  const Expr count = b.op("ReduceProd", {dims}, {{"keepdims", int64_t{1}}});
  const Expr empty = zeros(x.dtype(), b.op("Concat", {count, rest}, along));
  const Expr filled = b.op("ScatterND", {empty, unsqueeze(require_input(c, 1), {-1}), x});
  return {b.reshape(filled, b.op("Concat", {dims, rest}, along))};
}

}  // namespace halfnote::foreign
