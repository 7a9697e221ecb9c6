// Einsum in Transpose, MatMul, ReduceSum and Mul, operands taken from left to right:
//
//   1. a label that stands twice in a term: its diagonal (Gather on the merged dim)
//   2. a label that only one operand has and nobody needs later: ReduceSum
//   3. two operands: labels both have and that are needed later are batch dims; those that are not
//      are contracted by MatMul, the others are its rows and columns (merged by Reshape); without
//      anything to contract the product is a broadcast Mul
//   4. Transpose to the order of the result
//
// Dims of size 1 broadcast, as those of the ellipsis do: they are squeezed out beside larger ones.
#include "compiler/ops/contraction/einsum.h"

#include <algorithm>

#include "base/error.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/extent.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

struct Term {
  Expr x;
  Labels labels;

  int64_t axis(int label) const {
    return std::find(labels.begin(), labels.end(), label) - labels.begin();
  }
  Extent extent(int label) const { return {x, axis(label)}; }
  Dim dim(int label) const { return extent(label).dim(); }
};

/// The term with its axes in this order.
Term ordered(const Term& term, const Labels& order) {
  if (order == term.labels) return term;
  std::vector<int64_t> perm;
  SymbolicShape shape;
  for (int label : order) {
    perm.push_back(term.axis(label));
    shape.push_back(term.dim(label));
  }
  return {with_shape(term.x.builder->transpose(term.x, perm), shape), order};
}

Labels operator+(Labels a, const Labels& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// i·(n + 1) for i < n: where the diagonal of (n, n) lies in (n·n).
Expr diagonal_positions(Builder& b, const Extent& size) {
  const auto number = [&](int64_t n) { return b.constant(Tensor::scalar<int64_t>(n)); };
  if (size.dim().known()) {
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < size.dim().value; ++i) positions.push_back(i * (size.dim().value + 1));
    return b.ints(positions);
  }
  const Expr n = b.reshape(sizes_of(b, {size}), b.ints({}));
  return b.op("Range", {number(0), n, number(1)}) * (n + number(1));
}

/// Takes diagonals until every label stands once.
Term without_repeats(Term term) {
  Builder& b = *term.x.builder;
  for (size_t i = 0; i < term.labels.size(); ++i) {
    const int label = term.labels[i];
    const auto twin =
        std::find(term.labels.begin() + static_cast<int64_t>(i) + 1, term.labels.end(), label);
    if (twin == term.labels.end()) continue;
    const int64_t second = twin - term.labels.begin();
    std::vector<int64_t> perm;
    Labels left;
    std::vector<std::vector<Extent>> merged;
    const Extent size{term.x, static_cast<int64_t>(i)};
    SymbolicShape shape;
    for (int64_t axis = 0; axis < term.x.rank(); ++axis) {
      if (axis == static_cast<int64_t>(i) || axis == second) continue;
      perm.push_back(axis);
      left.push_back(term.labels[static_cast<size_t>(axis)]);
      merged.push_back({Extent{term.x, axis}});
      shape.push_back(term.x.shape()[static_cast<size_t>(axis)]);
    }
    perm.push_back(static_cast<int64_t>(i));
    perm.push_back(second);
    left.push_back(label);
    merged.push_back({size, Extent{term.x, second}});
    shape.push_back(size.dim());
    const Expr flat = reshape_to(b.transpose(term.x, perm), merged);
    const Expr diagonal = b.op("Gather", {flat, diagonal_positions(b, size)},
                               {{"axis", static_cast<int64_t>(shape.size()) - 1}});
    term = {with_shape(diagonal, shape), left};
    i = static_cast<size_t>(-1);  // from the start: the axes moved
  }
  return term;
}

/// The term summed over `labels`.
Term summed(const Term& term, const Labels& labels) {
  std::vector<int64_t> axes;
  Term result{term.x, {}};
  for (int label : term.labels) {
    if (contains(labels, label)) axes.push_back(term.axis(label));
    if (!contains(labels, label)) result.labels.push_back(label);
  }
  result.x = term.x.builder->reduce_sum(term.x, axes, false);
  return result;
}

/// Squeezes out the dims of size 1 that the other operand has larger.
Term without_units(const Term& term, const Term& other) {
  std::vector<int64_t> axes;
  Term result{term.x, {}};
  for (int label : term.labels) {
    const bool unit =
        term.dim(label).is(1) && contains(other.labels, label) && !other.dim(label).is(1);
    if (unit) axes.push_back(term.axis(label));
    if (!unit) result.labels.push_back(label);
  }
  result.x = squeeze(term.x, axes);
  return result;
}

void check_sizes(const Term& a, const Term& b) {
  for (int label : a.labels) {
    if (!contains(b.labels, label)) continue;
    const Dim left = a.dim(label), right = b.dim(label);
    if (!left.known() || !right.known() || left.value == right.value) continue;
    throw Error(ErrorCode::kModel, "two operands of Einsum differ in a dim that they share")
        .expected(std::to_string(left.value), std::to_string(right.value));
  }
}

/// The term with dims of size 1 where it lacks labels of `order`.
Expr aligned(const Term& term, const Labels& order) {
  Labels own;
  std::vector<int64_t> missing;
  for (size_t i = 0; i < order.size(); ++i) {
    if (contains(term.labels, order[i])) own.push_back(order[i]);
    if (!contains(term.labels, order[i])) missing.push_back(static_cast<int64_t>(i));
  }
  return unsqueeze(ordered(term, own).x, missing);
}

Term broadcast_product(const Term& a, const Term& b, const Labels& order) {
  SymbolicShape shape;
  for (int label : order) shape.push_back(contains(a.labels, label) ? a.dim(label) : b.dim(label));
  return {with_shape(aligned(a, order) * aligned(b, order), shape), order};
}

/// How the labels of two operands take part in a product.
struct Roles {
  Labels batch, inner, rows, columns;
};

Roles roles_of(const Term& a, const Term& b, const Labels& needed) {
  Roles roles;
  for (int label : a.labels) {
    if (!contains(b.labels, label)) roles.rows.push_back(label);
    if (!contains(b.labels, label)) continue;
    (contains(needed, label) ? roles.batch : roles.inner).push_back(label);
  }
  for (int label : b.labels) {
    if (!contains(a.labels, label)) roles.columns.push_back(label);
  }
  return roles;
}

std::vector<Extent> extents(const Term& term, const Labels& labels) {
  std::vector<Extent> sizes;
  for (int label : labels) sizes.push_back(term.extent(label));
  return sizes;
}

/// The term as (batch…, first, second), both groups merged into one dim each.
Expr as_matrices(const Term& term, const Labels& batch, const Labels& first, const Labels& second) {
  const Term sorted = ordered(term, batch + first + second);
  if (first.size() == 1 && second.size() == 1) return sorted.x;
  std::vector<std::vector<Extent>> dims;
  for (int label : batch) dims.push_back({sorted.extent(label)});
  dims.push_back(extents(sorted, first));
  dims.push_back(extents(sorted, second));
  return reshape_to(sorted.x, dims);
}

Term matrix_product(const Term& a, const Term& b, const Roles& roles) {
  Builder& builder = *a.x.builder;
  const Expr right = as_matrices(b, roles.batch, roles.inner, roles.columns);
  // A 2-D right side multiplies all rows as they are.
  const bool plain = roles.batch.empty() && roles.inner.size() == 1 && !roles.rows.empty();
  const Expr left = plain ? ordered(a, roles.rows + roles.inner).x
                          : as_matrices(a, roles.batch, roles.rows, roles.inner);
  const Expr product = builder.op("MatMul", {left, right});
  const Labels labels = roles.batch + roles.rows + roles.columns;
  if ((plain || roles.rows.size() == 1) && roles.columns.size() == 1) return {product, labels};
  std::vector<std::vector<Extent>> dims;
  for (int label : labels) {
    dims.push_back({contains(a.labels, label) ? a.extent(label) : b.extent(label)});
  }
  return {reshape_to(product, dims), labels};
}

/// The product of two terms, summed over what nobody needs.
Term product(Term a, Term b, const Labels& needed) {
  const Term left = without_units(a, b), right = without_units(b, a);
  check_sizes(left, right);
  const auto alone = [&](const Term& term, const Term& other) {
    Labels labels;
    for (int label : term.labels) {
      if (!contains(other.labels, label) && !contains(needed, label)) labels.push_back(label);
    }
    return labels;
  };
  a = summed(left, alone(left, right));
  b = summed(right, alone(right, left));
  const Roles roles = roles_of(a, b, needed);
  if (!roles.inner.empty() && is_float(a.x.dtype())) return matrix_product(a, b, roles);
  const Labels all = roles.batch + roles.rows + roles.columns + roles.inner;
  return summed(broadcast_product(a, b, all), roles.inner);
}

}  // namespace

std::vector<Expr> lower_einsum(LowerContext& rule) {
  std::vector<int> ranks;
  for (const Expr& input : rule.inputs) ranks.push_back(input.rank());
  const Equation equation = parse_equation(rule.attributes().get_string("equation", ""), ranks);
  Term term;
  for (size_t i = 0; i < rule.inputs.size(); ++i) {
    Labels needed = equation.result;
    for (size_t k = i + 1; k < equation.operands.size(); ++k) {
      needed = needed + equation.operands[k];
    }
    const Term next = without_repeats({rule.inputs[i], equation.operands[i]});
    if (i > 0) term = product(term, next, needed);
    if (i == 0) term = next;
  }
  Labels rest;
  for (int label : term.labels) {
    if (!contains(equation.result, label)) rest.push_back(label);
  }
  return {ordered(summed(term, rest), equation.result).x};
}

}  // namespace halfnote::contraction
