// The scale of QuantizeLinear and DequantizeLinear: one for the tensor, for each index of the axis,
// or for each block along it. The zero points go with the scales.
#include <string>

#include "base/error.h"
#include "compiler/ops/contract/operands.h"

namespace halfnote::contract {
namespace {

/// ONNX's own tests give a zero point [1] beside a scalar; others, a scalar beside [1].
void check_zero_point(const Operands& o, const SymbolicShape& scale) {
  const SymbolicShape* zero = o.shape(2);
  const bool single = zero != nullptr && may_be_one_element(*zero) && may_be_one_element(scale);
  if (!single) check_shape(o, 2, "zero point", scale);
}

/// One scale for `block` elements; the last block may be shorter.
Dim blocks_of(const Dim& dim, int64_t block) {
  return dim.known() ? Dim(dim.value / block + (dim.value % block != 0 ? 1 : 0)) : Dim();
}

}  // namespace

void check_quantized(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *scale = o.shape(1);
  if (scale == nullptr) return;
  check_zero_point(o, *scale);
  if (x == nullptr || (scale->size() < 2 && may_be_one_element(*scale))) return;
  if (x->empty()) refuse(o, 1, "scale", "one number", to_string(*scale));
  const auto axis = static_cast<size_t>(
      normalize_axis(o.node.attributes.get_int("axis", 1), static_cast<int64_t>(x->size())));
  const int64_t block = o.node.attributes.get_int("block_size", 0);
  if (block > 0 && scale->size() == x->size()) {
    SymbolicShape wanted = *x;
    wanted[axis] = blocks_of(wanted[axis], block);
    return check_shape(o, 1, "scale", wanted);
  }
  check_shape(o, 1, "scale", {(*x)[axis]});
}

}  // namespace halfnote::contract
