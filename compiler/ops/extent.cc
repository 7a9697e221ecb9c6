#include "compiler/ops/extent.h"

#include <algorithm>

#include "base/shape.h"
#include "compiler/ops/rule_support.h"

namespace halfnote {
namespace {

/// The product of some sizes: a number, or a symbol made of theirs, so that the same product is the
/// same dim wherever it is made; open where a size is.
Dim product_of(const std::vector<Extent>& sizes) {
  int64_t product = 1;
  std::string symbols;
  for (const Extent& size : sizes) {
    const Dim dim = size.dim();
    if (!dim.known() && dim.symbol.empty()) return Dim();
    if (!dim.known()) symbols += (symbols.empty() ? "" : "_times_") + dim.symbol;
    if (dim.known()) product = checked_mul(product, dim.value);
  }
  if (symbols.empty()) return Dim(product);
  return Dim::named(product == 1 ? symbols : symbols + "_times_" + std::to_string(product));
}

Expr size_of_axis(Builder& b, const Extent& size) {
  if (size.dim().known()) return b.ints({size.dim().value});
  return dims_of(size.of, size.axis, size.axis + 1);
}

/// The product of some sizes as a 1-D int64 value of one element.
Expr computed_product(Builder& b, const std::vector<Extent>& sizes) {
  Expr product = size_of_axis(b, sizes[0]);
  for (size_t i = 1; i < sizes.size(); ++i) product = product * size_of_axis(b, sizes[i]);
  return product;
}

}  // namespace

Dim Extent::dim() const { return of.valid() ? of.shape()[static_cast<size_t>(axis)] : Dim(axis); }

Expr with_shape(Expr x, const SymbolicShape& shape) {
  ValueType& type = x.builder->graph().value(x.id).type;
  if (!type.shape || type.shape->size() != shape.size()) {
    type.shape = shape;
    return x;
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i].known() || !shape[i].symbol.empty()) (*type.shape)[i] = shape[i];
  }
  return x;
}

Expr sizes_of(Builder& b, const std::vector<Extent>& sizes) {
  std::vector<int64_t> numbers;
  std::vector<Expr> parts;
  for (const Extent& size : sizes) {
    if (size.dim().known()) {
      numbers.push_back(size.dim().value);
      continue;
    }
    if (!numbers.empty()) parts.push_back(b.ints(numbers));
    numbers.clear();
    parts.push_back(size_of_axis(b, size));
  }
  if (!numbers.empty() || parts.empty()) parts.push_back(b.ints(numbers));
  return parts.size() == 1 ? parts[0] : b.ops("Concat", parts, 1, {{"axis", int64_t{0}}})[0];
}

Expr reshape_to(Expr x, const std::vector<std::vector<Extent>>& dims) {
  Builder& b = *x.builder;
  SymbolicShape shape;
  for (const std::vector<Extent>& sizes : dims) shape.push_back(product_of(sizes));
  const SymbolicShape from = x.shape();
  const bool empty = std::any_of(shape.begin(), shape.end(), [](const Dim& d) { return d.is(0); });
  // 0 copies the dim of x that stands at the same place, one dim may be what is left over.
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool copied = !empty && i < from.size() && shape[i].same_as(from[i]);
    numbers.push_back(shape[i].known() ? shape[i].value : copied ? 0 : -1);
  }
  if (std::count(numbers.begin(), numbers.end(), -1) <= (empty ? 0 : 1)) {
    Attributes attributes;
    if (empty) attributes.set("allowzero", int64_t{1});
    return with_shape(b.op("Reshape", {x, b.ints(numbers)}, std::move(attributes)), shape);
  }
  std::vector<Expr> parts;
  for (size_t i = 0; i < dims.size(); ++i) {
    parts.push_back(shape[i].known() ? b.ints({shape[i].value}) : computed_product(b, dims[i]));
  }
  const Expr target = b.ops("Concat", parts, 1, {{"axis", int64_t{0}}})[0];
  return with_shape(b.op("Reshape", {x, target}, {{"allowzero", int64_t{1}}}), shape);
}

}  // namespace halfnote
