// Cutting tensors of any type, strings too, along an axis and putting pieces together: what loops
// and sequences do with whole tensors.
#pragma once

#include <span>

#include "base/tensor.h"

namespace halfnote {

/// The part [begin, end) of `axis`, which must be within the tensor.
Tensor slice_along(const Tensor& tensor, int64_t axis, int64_t begin, int64_t end);
/// Element `index` of `axis`; the axis goes.
Tensor take_along(const Tensor& tensor, int64_t axis, int64_t index);
/// All pieces one after the other along `axis`. Throws Error(kData) where type or shape differ.
Tensor concat_along(std::span<const Tensor> pieces, int64_t axis);
/// All pieces, of one type and shape, along a new axis.
Tensor stack_along(std::span<const Tensor> pieces, int64_t axis);

}  // namespace halfnote
