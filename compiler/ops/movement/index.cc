// Gradients of ops that read or write by index: what was read is added up where it came from, what
// was written is read where it went.
#include <algorithm>
#include <functional>

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

/// The two directions of a scatter: `scatter(data, updates, reduction)` writes updates into data,
/// `gather(data)` reads them.
struct Access {
  std::function<Expr(Expr, Expr, const char*)> scatter;
  std::function<Expr(Expr)> gather;
};

/// Where `x` is 0: 1, elsewhere 0.
Expr zero_count(Expr x) {
  Builder& b = *x.builder;
  return b.cast(b.op("Equal", {x, b.scalar(x.dtype(), 0)}), x.dtype());
}

/// y is a product of some factors f; of those, z are 0. dy·∂y/∂f is dy·y/f where z is 0, dy times
/// the product of the others where f alone is 0, else 0.
Expr product_gradient(Expr dy, Expr others, Expr zeros, Expr factor) {
  Builder& b = *dy.builder;
  const Expr is_zero = b.op("Equal", {factor, b.scalar(factor.dtype(), 0)});
  const Expr safe = b.op("Where", {is_zero, b.scalar(factor.dtype(), 1), factor});
  const Expr own = b.cast(is_zero, zeros.dtype());
  const Expr alone = b.op("Equal", {zeros, own});  // no other factor is 0
  return mask_zero(alone, dy * others / safe);
}

/// reduction mul: `others` is the product of the factors that are not 0.
void scatter_mul_gradient(GradientContext& rule, const Access& access, std::vector<Expr>& results) {
  Builder& b = rule.b;
  const Expr data = rule.inputs[0], updates = rule.inputs[2], dy = rule.grads[0];
  const auto without_zeros = [&](Expr x) {
    const Expr is_zero = b.op("Equal", {x, b.scalar(x.dtype(), 0)});
    return b.op("Where", {is_zero, b.scalar(x.dtype(), 1), x});
  };
  const Expr others = access.scatter(without_zeros(data), without_zeros(updates), "mul");
  const Expr count = access.scatter(zero_count(data), zero_count(updates), "add");
  if (rule.needed[0]) results[0] = product_gradient(dy, others, count, data);
  if (!rule.needed[2]) return;
  results[2] =
      product_gradient(access.gather(dy), access.gather(others), access.gather(count), updates);
}

/// reduction max or min: those that equal the result share its gradient.
void scatter_extreme_gradient(GradientContext& rule, const Access& access,
                              std::vector<Expr>& results) {
  Builder& b = rule.b;
  const Expr data = rule.inputs[0], updates = rule.inputs[2], y = rule.outputs[0];
  const auto equal = [&](Expr x, Expr extreme) {
    return b.cast(b.op("Equal", {x, extreme}), x.dtype());
  };
  const Expr of_data = equal(data, y), of_updates = equal(updates, access.gather(y));
  const Expr share = rule.grads[0] / access.scatter(of_data, of_updates, "add");
  if (rule.needed[0]) results[0] = share * of_data;
  if (rule.needed[2]) results[2] = access.gather(share) * of_updates;
}

std::vector<Expr> scatter_gradient(GradientContext& rule, const Access& access) {
  const Expr dy = rule.grads[0];
  const std::string reduction = rule.attributes().get_string("reduction", "none");
  std::vector<Expr> results(3, rule.b.none());
  if (reduction == "mul") {
    scatter_mul_gradient(rule, access, results);
  } else if (reduction == "max" || reduction == "min") {
    scatter_extreme_gradient(rule, access, results);
  } else {
    const bool keeps_data = reduction == "add";
    if (rule.needed[0]) {
      results[0] = keeps_data ? dy : access.scatter(dy, zeros_like(rule.inputs[2]), "none");
    }
    if (rule.needed[2]) results[2] = access.gather(dy);
  }
  for (size_t i : {size_t{0}, size_t{2}}) {
    if (results[i].valid() && results[i].id != dy.id) with_type_of(results[i], rule.inputs[i]);
  }
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

namespace {

/// The attributes of a scatter; none is the default.
Attributes reducing(Attributes attributes, std::string_view reduction) {
  if (reduction != "none") attributes.set("reduction", std::string(reduction));
  return attributes;
}

}  // namespace

std::vector<Expr> scatter_elements_gradient(GradientContext& rule) {
  const int64_t axis = rule.attributes().get_int("axis", 0);
  const Expr indices = rule.inputs[1];
  const auto scatter = [&](Expr data, Expr updates, const char* reduction) {
    return rule.b.op("ScatterElements", {data, indices, updates},
                     reducing({{"axis", axis}}, reduction));
  };
  const auto gather = [&](Expr data) {
    return rule.b.op("GatherElements", {data, indices}, {{"axis", axis}});
  };
  return scatter_gradient(rule, {scatter, gather});
}

std::vector<Expr> scatter_nd_gradient(GradientContext& rule) {
  const Expr indices = rule.inputs[1];
  const auto scatter = [&](Expr data, Expr updates, const char* reduction) {
    return rule.b.op("ScatterND", {data, indices, updates}, reducing({}, reduction));
  };
  const auto gather = [&](Expr data) { return rule.b.op("GatherND", {data, indices}); };
  return scatter_gradient(rule, {scatter, gather});
}

/// Y is values[1] where the index points and values[0] elsewhere: each takes the sum of dY there.
std::vector<Expr> one_hot_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr indices = rule.inputs[0], depth = rule.inputs[1], values = rule.inputs[2];
  const Expr dy = rule.grads[0];
  const std::vector<int64_t> axes = axes_between(0, dy.rank());
  const auto sum_where = [&](double off, double on) {
    const Tensor marks = Tensor::of<double>({2}, {off, on}).cast_to(dy.dtype());
    const Expr mask = b.op("OneHot", {indices, depth, b.constant(marks)}, rule.attributes());
    return b.reshape(b.reduce_sum(dy * mask, axes, false), b.ints({1}));
  };
  const Expr sums = b.op("Concat", {sum_where(1, 0), sum_where(0, 1)}, {{"axis", int64_t{0}}});
  return {b.none(), b.none(), with_type_of(sums, values)};
}

std::vector<Expr> lower_compress(LowerContext& rule) {
  Builder& b = rule.b;
  const Tensor* mask = b.graph().constant(rule.inputs.at(1).id);
  if (mask == nullptr) return {};
  std::vector<int64_t> places;
  for (int64_t i = 0; i < mask->size(); ++i) {
    if (mask->at_as_int(i) != 0) places.push_back(i);
  }
  const bool flat = !rule.attributes().has("axis");
  const Expr x = flat ? b.reshape(rule.inputs[0], b.ints({-1})) : rule.inputs[0];
  const int64_t axis = flat ? 0 : normalize_axis(rule.attributes().get_int("axis", 0), x.rank());
  const Dim& dim = x.shape()[static_cast<size_t>(axis)];
  if (dim.known() && !places.empty() && places.back() >= dim.value) {
    throw Error(ErrorCode::kModel, "the mask selects what is not there")
        .expected("at most " + std::to_string(dim.value) + " elements along the axis",
                  "true at place " + std::to_string(places.back()));
  }
  return {b.op("Gather", {x, b.ints(places)}, {{"axis", axis}})};
}

}  // namespace halfnote::movement
