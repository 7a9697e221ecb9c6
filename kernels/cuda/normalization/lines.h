// What the kernels of lines share: a block of threads a line, its parameters, sums of columns.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cpu/normalization/parts.h"
#include "kernels/cuda/columns.h"
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

/// Merges the slices of one or two column sums: a slice has those of the scale, then those of the
/// bias.
template <class P>
struct AddSlices : AddedParts {
  const P* parts;
  int64_t length, step;
  RealOutput d_scale, d_bias;
  __device__ double part(int64_t slice, int64_t column) const {
    return parts[slice * step + column];
  }
  __device__ void finish(int64_t column, double sum) const {
    const bool is_scale = column < length;
    const RealOutput& to = is_scale ? d_scale : d_bias;
    if (to.data != nullptr) to.write(is_scale ? column : column - length, sum);
  }
};

/// `step` elements lie from slice to slice.
template <class P>
void add_slices(Stream& stream, const P* parts, int64_t slices, int64_t length, int64_t step,
                RealOutput d_scale, RealOutput d_bias) {
  if (d_scale.data == nullptr && d_bias.data == nullptr) return;
  const int64_t columns = d_bias.data == nullptr ? length : 2 * length;
  merge_columns(stream, AddSlices<P>{{}, parts, length, step, d_scale, d_bias}, columns, slices);
}

}  // namespace halfnote::HN_CUDA
