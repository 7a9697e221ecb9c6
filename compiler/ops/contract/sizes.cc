// Sizes that a node asks for: nothing is enlarged that has no elements, and nothing is made smaller
// than nothing.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "compiler/ops/contract/operands.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contract {
namespace {

/// The axes of `x` that a list names, all of them where there is no list.
std::vector<size_t> named_axes(const SymbolicShape& x,
                               const std::optional<std::vector<int64_t>>& list) {
  const auto rank = static_cast<int64_t>(x.size());
  std::vector<size_t> axes;
  for (int64_t axis : list ? *list : axes_between(0, rank)) {
    axes.push_back(static_cast<size_t>(normalize_axis(axis, rank)));
  }
  return axes;
}

void check_scales(const Operands& o) {
  const Tensor* scales = o.constant(2);
  for (int64_t i = 0; scales != nullptr && i < scales->size(); ++i) {
    const double scale = scales->at_as_double(i);
    if (scale > 0 && std::isfinite(scale)) continue;
    throw out_of_range(o, 2, "a scale")
        .expected("a finite number above 0", std::to_string(scale) + " at " + std::to_string(i));
  }
}

/// A size of 0 comes from a size of 0, and only from there.
void check_sizes(const Operands& o, const SymbolicShape& x, const std::vector<size_t>& axes) {
  const Tensor* sizes = o.constant(3);
  if (sizes == nullptr || sizes->size() != static_cast<int64_t>(axes.size())) return;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t size = sizes->at_as_int(static_cast<int64_t>(i));
    const Dim& dim = x[axes[i]];
    if (dim.is(0) ? size == 0 : size > 0 || (size == 0 && !dim.known())) continue;
    throw out_of_range(o, 3, "a size")
        .expected((dim.is(0) ? "0 for axis " : "1 or more for axis ") + std::to_string(axes[i]) +
                      " of " + to_string(x),
                  std::to_string(size));
  }
}

}  // namespace

void check_resize(const Operands& o) {
  check_scales(o);
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr) return;
  const Attributes& attributes = o.node.attributes;
  std::optional<std::vector<int64_t>> list;
  if (attributes.has("axes")) list = attributes.get_ints("axes");
  const std::vector<size_t> axes = named_axes(*x, list);
  check_sizes(o, *x, axes);
  if (attributes.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize") return;
  if (o.operand(1).valid()) {
    check_shape(o, 1, "roi", {Dim(static_cast<int64_t>(2 * axes.size()))});
    return;
  }
  throw Error(ErrorCode::kModel, "tf_crop_and_resize without a region")
      .expected("input \"roi\": a start and an end for each axis", "none");
}

/// Padding that is no constant copies elements: of none it can make none.
void check_pad(const Operands& o) {
  check_one_element(o, 2, "the value of the padding");
  const SymbolicShape* x = o.shape(0);
  const auto pads = constant_ints(o.graph, o.operand(1));
  const auto list = constant_ints(o.graph, o.operand(3));
  if (x == nullptr || !pads || (o.operand(3).valid() && !list)) return;
  const std::vector<size_t> axes = named_axes(*x, list);
  if (pads->size() != 2 * axes.size()) {
    refuse(o, 1, "padding", "a start and an end for " + std::to_string(axes.size()) + " axes",
           std::to_string(pads->size()) + " numbers");
  }
  if (o.node.attributes.get_string("mode", "constant") == "constant") return;
  for (size_t i = 0; i < pads->size(); ++i) {
    const size_t axis = axes[i % axes.size()];
    if ((*pads)[i] <= 0 || !(*x)[axis].is(0)) continue;
    refuse(o, 1, "padding",
           "none along axis " + std::to_string(axis) + " of " + to_string(*x) +
               ", which has no element to copy",
           std::to_string((*pads)[i]));
  }
}

void check_dft(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x != nullptr && !x->empty() && !fits(x->back(), 1) && !fits(x->back(), 2)) {
    refuse(o, 0, "operand", "a last dim of 1 (real) or 2 (complex)", to_string(*x));
  }
  const Tensor* length = o.constant(1);
  check_one_element(o, 1, "dft_length");
  if (length == nullptr || length->size() != 1 || length->at_as_int(0) > 0) return;
  throw out_of_range(o, 1, "the length")
      .expected("at least 1", std::to_string(length->at_as_int(0)));
}

}  // namespace halfnote::contract
