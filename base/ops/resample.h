// Resampling along one axis, as ONNX's Resize defines it: where each result reads, and with which
// weights. Kernels and function bodies both use it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/attribute.h"
#include "base/shape.h"

namespace halfnote {

/// A sparse matrix by rows: result i is Σ weights[k]·x[sources[k]] for k in [starts[i],
/// starts[i + 1]).
struct Taps {
  int64_t inputs = 0;
  std::vector<int64_t> starts, sources;
  std::vector<double> weights;
  /// Results that lie outside of the input and have the extrapolation value instead (their rows are
  /// empty); empty where no mode extrapolates.
  std::vector<uint8_t> outside;

  int64_t outputs() const { return static_cast<int64_t>(starts.size()) - 1; }
};

/// The transposed matrix: what takes gradients of results to gradients of inputs.
Taps transposed(const Taps& taps);

/// How one axis is resized.
struct AxisResize {
  size_t axis = 0;
  int64_t input = 0, output = 0;
  double scale = 1;
  double begin = 0, end = 1;  // region of interest, of the whole axis
};

/// The operands of a Resize that say how; empty where absent.
struct ResizeOperands {
  std::vector<double> roi, scales;
  std::vector<int64_t> sizes;
};

/// The axes that a Resize of `input` to `output` with these attributes changes, in ascending order.
/// Throws Error(kModel) for operands that do not fit.
std::vector<AxisResize> resized_axes(const Attributes& attributes, const ResizeOperands& operands,
                                     const Shape& input, const Shape& output);

/// Where one axis reads. Attributes: mode, coordinate_transformation_mode, nearest_mode,
/// cubic_coeff_a, exclude_outside, antialias. Throws Error(kModel) for unknown modes.
Taps resize_taps(const Attributes& attributes, const AxisResize& axis);

}  // namespace halfnote
