// Gradients of ops that keep all elements: another shape, another order, or some of them zeroed.
#include <algorithm>
#include <numeric>

#include "compiler/ops/movement/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::movement {
namespace {

std::vector<Expr> first_of(GradientContext& rule, Expr gradient) {
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  results[0] = gradient;
  return results;
}

/// The op itself on dY, with the same other operands and attributes.
std::vector<Expr> same_op(GradientContext& rule) {
  const std::string op = rule.graph().node(rule.node).op;
  std::vector<Expr> operands = rule.inputs;
  operands[0] = rule.grads[0];
  const Expr dx = rule.b.ops(op, operands, 1, rule.attributes())[0];
  return first_of(rule, with_type_of(dx, rule.inputs[0]));
}

}  // namespace

Expr with_type_of(Expr x, Expr like) {
  x.builder->graph().value(x.id).type = gradient_type(like.type());
  return x;
}

Expr zeros_like(Expr like) { return with_type_of(zero_gradient(like), like); }

Expr reshape_like(Expr x, Expr like) {
  Builder& b = *x.builder;
  const SymbolicShape shape = like.shape();
  std::vector<int64_t> dims;
  int unknown = 0;
  bool may_be_empty = false;
  for (const Dim& dim : shape) {
    unknown += dim.known() ? 0 : 1;
    may_be_empty = may_be_empty || dim.is(0);
    dims.push_back(dim.known() ? dim.value : -1);
  }
  if (unknown > 1 || may_be_empty) {  // a 0 means "copy the dim" unless it is allowed to mean 0
    const Expr result = b.op("Reshape", {x, b.shape_of(like)}, {{"allowzero", int64_t{1}}});
    return with_type_of(result, like);
  }
  return with_type_of(b.reshape(x, b.ints(dims)), like);
}

std::vector<Expr> identity_gradient(GradientContext& rule) { return first_of(rule, rule.grads[0]); }

std::vector<Expr> reshape_gradient(GradientContext& rule) {
  return first_of(rule, reshape_like(rule.grads[0], rule.inputs[0]));
}

/// Runtimes take one axis as a number in Unsqueeze, but not in Squeeze.
Expr list_of_axes(Builder& b, const Expr& axes) {
  return axes.rank() == 0 ? b.reshape(axes, b.ints({1})) : axes;
}

std::vector<Expr> squeeze_gradient(GradientContext& rule) {
  if (rule.inputs.size() < 2 || !rule.inputs[1].valid()) return reshape_gradient(rule);
  if (auto axes = constant_ints(rule.graph(), rule.inputs[1].id);
      axes && rule.inputs[0].rank() >= 0) {
    // Squeeze lets an axis stand twice, Unsqueeze does not.
    for (int64_t& axis : *axes) axis = normalize_axis(axis, rule.inputs[0].rank());
    std::sort(axes->begin(), axes->end());
    axes->erase(std::unique(axes->begin(), axes->end()), axes->end());
    return first_of(rule, with_type_of(unsqueeze(rule.grads[0], *axes), rule.inputs[0]));
  }
  const Expr dx = rule.b.op("Unsqueeze", {rule.grads[0], list_of_axes(rule.b, rule.inputs[1])});
  return first_of(rule, with_type_of(dx, rule.inputs[0]));
}

std::vector<Expr> unsqueeze_gradient(GradientContext& rule) {
  const Expr dx = rule.b.op("Squeeze", {rule.grads[0], list_of_axes(rule.b, rule.inputs[1])});
  return first_of(rule, with_type_of(dx, rule.inputs[0]));
}

std::vector<Expr> transpose_gradient(GradientContext& rule) {
  const auto rank = static_cast<size_t>(rule.inputs[0].rank());
  std::vector<int64_t> reversed(rank);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const std::vector<int64_t> perm = rule.attributes().get_ints("perm", reversed);
  std::vector<int64_t> inverse(rank);
  for (size_t i = 0; i < rank; ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return first_of(rule, rule.b.transpose(rule.grads[0], inverse));
}

/// SpaceToDepth undoes the mode DCR. CRD has the block of each channel innermost: there its result
/// (N, b·b·C, H, W) becomes (N, C·b·b, H, W).
std::vector<Expr> depth_to_space_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const int64_t block = rule.attributes().get_int("blocksize", 1);
  const Expr deep = b.op("SpaceToDepth", {rule.grads[0]}, {{"blocksize", block}});
  if (rule.attributes().get_string("mode", "DCR") == "DCR") {
    return first_of(rule, with_type_of(deep, rule.inputs[0]));
  }
  const Expr split_dims =
      b.op("Concat", {b.ints({0, block * block, -1}), dims_of(rule.inputs[0], 2, 4)},
           {{"axis", int64_t{0}}});
  const Expr swapped = b.transpose(b.reshape(deep, split_dims), {0, 2, 1, 3, 4});
  return first_of(rule, reshape_like(swapped, rule.inputs[0]));
}

std::vector<Expr> space_to_depth_gradient(GradientContext& rule) {
  const int64_t block = rule.attributes().get_int("blocksize", 1);
  const Expr dx = rule.b.op("DepthToSpace", {rule.grads[0]}, {{"blocksize", block}});
  return first_of(rule, with_type_of(dx, rule.inputs[0]));
}

std::vector<Expr> trilu_gradient(GradientContext& rule) { return same_op(rule); }

std::vector<Expr> reverse_sequence_gradient(GradientContext& rule) { return same_op(rule); }

}  // namespace halfnote::movement
