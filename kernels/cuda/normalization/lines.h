// What the kernels of lines share: a block of threads a line, its parameters, sums of columns.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cpu/normalization/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

using cpu::Lines;

inline constexpr unsigned kLineBlock = 128;

/// Blocks for so many lines; a block goes on with the next line of its own.
inline unsigned line_blocks(int64_t lines) {
  return static_cast<unsigned>(std::min<int64_t>(lines, kMaxBlocks));
}

/// A parameter of a line: its element i, or its only one.
struct LineParameter {
  RealPointer values;
  int64_t step = 0;
  __device__ double operator[](int64_t i) const { return values[i * step]; }
};

inline DType type_of(const KernelCall& call, size_t output) {
  return call.has_output(output) ? call.outputs[output].dtype : DType::kUndefined;
}

/// Is parameter `input` one element, or one for each position of a line?
inline bool spans_line(const KernelCall& call, size_t input, const Lines& lines) {
  const int64_t size = call.inputs[input].size();
  return size == 1 || size == lines.length;
}

/// Lines whose columns one thread sums: at most 65,535 slices of them.
inline int64_t lines_of_slice(const Lines& lines) {
  constexpr int64_t kSlice = 64, kMostSlices = 65535;
  return std::max(kSlice, (lines.count + kMostSlices - 1) / kMostSlices);
}

/// Merges the slices of two column sums, in order.
struct AddSlices {
  const double* parts;
  int64_t slices, length;
  RealOutput d_scale, d_bias;
  __device__ void operator()(int64_t column) const {
    double scale = 0, bias = 0;
    for (int64_t s = 0; s < slices; ++s) {
      scale += parts[2 * s * length + column];
      bias += parts[(2 * s + 1) * length + column];
    }
    if (d_scale.data != nullptr) d_scale.write(column, scale);
    if (d_bias.data != nullptr) d_bias.write(column, bias);
  }
};

}  // namespace halfnote::HN_CUDA
