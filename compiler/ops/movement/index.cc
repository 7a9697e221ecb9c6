// Gradients of ops that read or write by index: what was read is added up where it came from, what
// was written is read where it went.
#include <algorithm>

#include "base/error.h"
#include "compiler/ops/movement/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::movement {
namespace {

Attributes adding() { return {{"reduction", std::string("add")}}; }

bool is_ascending(const std::vector<int64_t>& perm) {
  return std::is_sorted(perm.begin(), perm.end());
}

Expr permuted(Expr x, const std::vector<int64_t>& perm) {
  return is_ascending(perm) ? x : x.builder->transpose(x, perm);
}

std::vector<int64_t> inverse_of(const std::vector<int64_t>& perm) {
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  }
  return inverse;
}

/// axes [from, to) first, the others after them in their order.
std::vector<int64_t> moved_to_front(int64_t rank, int64_t from, int64_t to) {
  std::vector<int64_t> perm = axes_between(from, to);
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (axis < from || axis >= to) perm.push_back(axis);
  }
  return perm;
}

/// Zeros of the shape that `x` has after Transpose(perm).
Expr permuted_zeros(Expr x, const std::vector<int64_t>& perm) {
  Builder& b = *x.builder;
  if (is_ascending(perm)) return zeros_like(x);
  if (!x.type().has_concrete_shape()) {
    return zeros(x.dtype(), b.op("Gather", {b.op("Shape", {x}), b.ints(perm)}));
  }
  std::vector<int64_t> dims;
  for (int64_t axis : perm) dims.push_back(x.shape()[static_cast<size_t>(axis)].value);
  return zeros(x.dtype(), b.ints(dims));
}

/// A constant scalar index into a dim of known size picks one slice: its gradient is that slice
/// between zeros.
std::optional<Expr> single_slice(GradientContext& rule, int64_t axis) {
  const Expr x = rule.inputs[0], indices = rule.inputs[1];
  const auto picked = constant_ints(rule.graph(), indices.id);
  const Dim dim = x.shape()[static_cast<size_t>(axis)];
  if (indices.rank() != 0 || !picked || !dim.known()) return std::nullopt;
  Builder& b = rule.b;
  const int64_t before = (*picked)[0] < 0 ? (*picked)[0] + dim.value : (*picked)[0];
  const Expr slice = unsqueeze(rule.grads[0], {axis});
  return b.op("Pad", {slice, b.ints({before, dim.value - 1 - before}), b.none(), b.ints({axis})});
}

/// reduction of a Scatter: true for add, false for none; the others have no gradient yet.
bool adds(GradientContext& rule) {
  const std::string reduction = rule.attributes().get_string("reduction", "none");
  if (reduction != "none" && reduction != "add") {
    throw Error(ErrorCode::kUnsupported, "no gradient of a scatter with this reduction")
        .expected("reduction none or add", reduction);
  }
  return reduction == "add";
}

/// The gradients of a scatter: `scatter` writes updates into data, `gather` reads them.
template <class Scatter, class Gather>
std::vector<Expr> scatter_gradient(GradientContext& rule, Scatter&& scatter, Gather&& gather) {
  const Expr dy = rule.grads[0];
  const bool keeps_data = adds(rule);
  std::vector<Expr> results(3, rule.b.none());
  if (rule.needed[0]) results[0] = keeps_data ? dy : scatter(dy, zeros_like(rule.inputs[2]));
  if (rule.needed[2]) results[2] = with_type_of(gather(dy), rule.inputs[2]);
  return results;
}

}  // namespace

std::vector<Expr> gather_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], indices = rule.inputs[1], dy = rule.grads[0];
  const int64_t axis = normalize_axis(rule.attributes().get_int("axis", 0), x.rank());
  if (const auto slice = single_slice(rule, axis)) return {with_type_of(*slice, x), b.none()};

  const std::vector<int64_t> order = moved_to_front(x.rank(), axis, axis + 1);
  const Expr updates = permuted(dy, moved_to_front(dy.rank(), axis, axis + indices.rank()));
  const Expr rows = unsqueeze(b.cast(indices, DType::kI64), {-1});
  const Expr sums = b.op("ScatterND", {permuted_zeros(x, order), rows, updates}, adding());
  return {with_type_of(permuted(sums, inverse_of(order)), x), b.none()};
}

std::vector<Expr> gather_elements_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0];
  Attributes attributes = adding();
  attributes.set("axis", rule.attributes().get_int("axis", 0));
  const Expr dx = rule.b.op("ScatterElements", {zeros_like(x), rule.inputs[1], rule.grads[0]},
                            std::move(attributes));
  return {with_type_of(dx, x), rule.b.none()};
}

std::vector<Expr> gather_nd_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0], indices = rule.inputs[1], dy = rule.grads[0];
  if (rule.attributes().get_int("batch_dims", 0) != 0) {  // ScatterND knows no batch
    const Expr positions = rule.b.op("GatherND", {positions_of(x), indices}, rule.attributes());
    return {add_at_positions(x, positions, dy), rule.b.none()};
  }
  const Expr dx = rule.b.op("ScatterND", {zeros_like(x), indices, dy}, adding());
  return {with_type_of(dx, x), rule.b.none()};
}

std::vector<Expr> scatter_elements_gradient(GradientContext& rule) {
  const Attributes axis = {{"axis", rule.attributes().get_int("axis", 0)}};
  const Expr indices = rule.inputs[1];
  return scatter_gradient(
      rule,
      [&](Expr data, Expr updates) {
        return rule.b.op("ScatterElements", {data, indices, updates}, axis);
      },
      [&](Expr data) {
        return rule.b.op("GatherElements", {data, indices}, axis);
      });
}

std::vector<Expr> scatter_nd_gradient(GradientContext& rule) {
  const Expr indices = rule.inputs[1];
  return scatter_gradient(
      rule,
      [&](Expr data, Expr updates) {
        return rule.b.op("ScatterND", {data, indices, updates});
      },
      [&](Expr data) {
        return rule.b.op("GatherND", {data, indices});
      });
}

}  // namespace halfnote::movement
