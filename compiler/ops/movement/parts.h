// The rules of the movement rows, file by file, and what they share.
#pragma once

#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::movement {

// shape.cc: the same elements in the same or a permuted order
std::vector<Expr> identity_gradient(GradientContext& rule);
std::vector<Expr> reshape_gradient(GradientContext& rule);
std::vector<Expr> squeeze_gradient(GradientContext& rule);
std::vector<Expr> unsqueeze_gradient(GradientContext& rule);
std::vector<Expr> transpose_gradient(GradientContext& rule);
std::vector<Expr> depth_to_space_gradient(GradientContext& rule);
std::vector<Expr> space_to_depth_gradient(GradientContext& rule);
std::vector<Expr> trilu_gradient(GradientContext& rule);
std::vector<Expr> reverse_sequence_gradient(GradientContext& rule);

// copy.cc: parts joined, cut out, bordered, repeated
std::vector<Expr> concat_gradient(GradientContext& rule);
std::vector<Expr> split_gradient(GradientContext& rule);
std::vector<Expr> slice_gradient(GradientContext& rule);
std::vector<Expr> pad_gradient(GradientContext& rule);
std::vector<Expr> expand_gradient(GradientContext& rule);
std::vector<Expr> tile_gradient(GradientContext& rule);

// range.cc
/// The type that ONNX infers; throws Error(kModel) for constants that make no sequence, which ONNX
/// takes for an empty one.
std::vector<ValueType> infer_range(const Graph& graph, NodeId node);

// patches.cc
std::vector<ValueType> infer_patches(const Graph& graph, NodeId node);
std::vector<Expr> patches_body(BodyContext& body);

// strided_sum.cc
std::vector<ValueType> infer_add_strided(const Graph& graph, NodeId node);
std::vector<Expr> add_strided_body(BodyContext& body);

// crop.cc
std::vector<Expr> lower_center_crop_pad(LowerContext& rule);

// index.cc: elements read or written by index
std::vector<Expr> gather_gradient(GradientContext& rule);
std::vector<Expr> gather_elements_gradient(GradientContext& rule);
std::vector<Expr> gather_nd_gradient(GradientContext& rule);
std::vector<Expr> scatter_elements_gradient(GradientContext& rule);
std::vector<Expr> scatter_nd_gradient(GradientContext& rule);
std::vector<Expr> one_hot_gradient(GradientContext& rule);
/// Compress by a constant mask is a Gather of the places where it is set.
std::vector<Expr> lower_compress(LowerContext& rule);

/// States that `x` has the type of a gradient of `like`: for rules that know more than inference
/// finds out.
Expr with_type_of(Expr x, Expr like);
/// `x` in the shape of `like`.
Expr reshape_like(Expr x, Expr like);
/// Zeros as the gradient of `like`.
Expr zeros_like(Expr like);
/// The flat position of each element of `x`, as int64 in the shape of `x`. A movement applied to it
/// tells where the op took each element of its result from.
Expr positions_of(Expr x);
/// The gradient of any op that only copies elements of `x`: dY added up at `positions`, which the
/// op made of `positions_of(x)`.
Expr add_at_positions(Expr x, Expr positions, Expr dy);

}  // namespace halfnote::movement
