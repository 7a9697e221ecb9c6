// What the rules of the operator rows share: operand types with their checks, shapes that operands
// spell out, and a few shorthands over the builder.
#pragma once

#include <optional>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"
#include "compiler/ops/operator.h"

namespace halfnote {

// --- inference ---

/// The type of operand `index`; throws Error(kModel) if the node leaves it out.
const ValueType& operand_type(const Graph& graph, NodeId node, size_t index);
/// The shape of operand `index`; throws Error(kUnsupported) where its rank is unknown.
const SymbolicShape& operand_shape(const Graph& graph, NodeId node, size_t index);
/// The shape that the int64 operand `index` spells: a constant, or Shape(X) of a typed X; unknown
/// dims where only its length is known.
SymbolicShape spelled_shape(const Graph& graph, NodeId node, size_t index);
/// Inference by copying: result i has the type of operand Index_i.
template <size_t... Index>
std::vector<ValueType> infer_like(const Graph& graph, NodeId node) {
  return {operand_type(graph, node, Index)...};
}
/// Can both be one shape, as far as their dims are known?
bool may_be_alike(const SymbolicShape& a, const SymbolicShape& b);
/// A dim of a broadcast result; unknown where two different symbols meet. Throws Error(kModel) for
/// numbers that do not fit.
Dim broadcast_dim(const Dim& a, const Dim& b);
/// Attribute `out_dtype`, or `fallback`; throws Error(kModel) unless it is a float type.
DType out_dtype_of(const Attributes& attributes, DType fallback);
/// The type that bodies compute in: f64 for f64, f32 for the other floats.
DType math_dtype(DType dtype);

// --- gradients and bodies ---

/// The numbers of a constant integer value; nothing if it is computed.
std::optional<std::vector<int64_t>> constant_ints(const Graph& graph, ValueId value);
/// The type of a value's gradient: its own, but f32 for the floats of 8 bits and fewer. What flows
/// into such a value was computed in a wider type; its own range would saturate it, scaled by the
/// loss scale all the more.
DType gradient_dtype(DType dtype);
ValueType gradient_type(ValueType type);
/// The rule of an op that is constant between its jumps: as in PyTorch a gradient of zero, which
/// nothing need carry on.
std::vector<Expr> no_slope(GradientContext& rule);
/// The rule of an op that reads the shapes of its operands, not their values.
std::vector<Expr> no_values(GradientContext& rule);
/// Zeros as the gradient of `like`.
Expr zero_gradient(Expr like);
/// from, from + 1, …, to − 1.
std::vector<int64_t> axes_between(int64_t from, int64_t to);
/// 0, 2, 3, …, rank − 1.
std::vector<int64_t> axes_but_channel(int64_t rank);
/// All dims of a shape as numbers; throws Error(kUnsupported) naming `what` where one is symbolic.
std::vector<int64_t> require_static(const SymbolicShape& shape, size_t from, const char* what);

Expr unsqueeze(Expr x, std::vector<int64_t> axes);
Expr squeeze(Expr x, std::vector<int64_t> axes);
/// `x` broadcast to the shape of `like`.
Expr expand_like(Expr x, Expr like);
/// A tensor of zeros with the shape that the 1-D int64 `shape` gives.
Expr zeros(DType dtype, Expr shape);
/// `x` under the shape that the 1-D int64 `shape` gives, where 0 is a size and copies nothing.
Expr reshape_exactly(Expr x, Expr shape);
/// Dims [from, to) of `x` as a 1-D int64 value; a constant where they are numbers.
Expr dims_of(Expr x, int64_t from, int64_t to);
/// The product of the dims `axes` of `x` as a scalar of type `dtype`; a constant where they are
/// numbers.
Expr count_along(Expr x, const std::vector<int64_t>& axes, DType dtype);
/// ReduceMean over `axes`, dims kept.
Expr mean_keep(Expr x, const std::vector<int64_t>& axes);
/// `where(mask, x, 0)`.
Expr mask_zero(Expr mask, Expr x);
/// (N, C, spatial…) as (N, spatial…, C).
Expr channels_last(Expr x);
/// And back.
Expr channels_second(Expr x);
/// A per-channel vector (C) as (C, 1, …), to be broadcast against (N, C, …) of `rank` dims.
Expr per_channel(Expr vector, int rank);

}  // namespace halfnote
