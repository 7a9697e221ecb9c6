// Reshapes by the sizes of other values: what a rule writes once for fixed and symbolic dims.
#pragma once

#include <vector>

#include "compiler/ir/builder.h"

namespace halfnote {

/// A size: that of axis `axis` of `of`, or, without `of`, the number `axis`.
struct Extent {
  Expr of;
  int64_t axis = 0;

  static Extent number(int64_t size) { return {Expr{}, size}; }
  Dim dim() const;
};

/// `x` in the shape whose dim i is the product of `dims[i]` (1 where empty). Sizes that are not
/// numbers are computed from shapes, all but one; the result's type knows every dim that is one
/// extent.
Expr reshape_to(Expr x, const std::vector<std::vector<Extent>>& dims);

/// A 1-D int64 value of these sizes; a constant where they are numbers.
Expr sizes_of(Builder& b, const std::vector<Extent>& sizes);

/// `x` with these dims as its shape: for rules that know more than inference finds out.
Expr with_shape(Expr x, const SymbolicShape& shape);

}  // namespace halfnote
