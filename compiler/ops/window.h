// The sliding window of a convolution or pooling node with every default filled in.
#pragma once

#include <vector>

#include "base/attribute.h"
#include "base/shape.h"

namespace halfnote {

/// Sizes per spatial axis; `pads` holds the begins of all axes, then the ends, as ONNX orders them.
struct Window {
  std::vector<int64_t> kernel, strides, dilations, pads;

  size_t rank() const { return kernel.size(); }
  /// Width of the dilated kernel along an axis.
  int64_t extent(size_t axis) const { return dilations[axis] * (kernel[axis] - 1) + 1; }
  int64_t begin(size_t axis) const { return pads[axis]; }
  int64_t end(size_t axis) const { return pads[rank() + axis]; }
  /// Windows along an axis of `in` elements; unknown if that is. With `ceil` (attribute ceil_mode)
  /// the last one may hang over the end, but not begin behind the operand.
  Dim results(size_t axis, const Dim& in, bool ceil) const;
  /// The attributes kernel_shape, strides, dilations and pads.
  Attributes attributes() const;
};

/// The window of a node whose input has the shape `x` (N, C, spatial…). `kernel` is used where
/// attribute kernel_shape is absent. Resolves auto_pad, which for SAME_* needs fixed spatial dims
/// (else Error(kUnsupported)); throws Error(kModel) for sizes that make no window.
Window window_of(const Attributes& attributes, const SymbolicShape& x,
                 std::vector<int64_t> kernel = {});

}  // namespace halfnote
