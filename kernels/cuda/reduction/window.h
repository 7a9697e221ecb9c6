// The windows of a pool on the device (kernels/cpu/reduction/window.h has their geometry).
#pragma once

#include "kernels/cpu/reduction/window.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// The place of a pixel of `dims`.
__device__ inline cpu::PoolGeometry::Dims pool_place(const cpu::PoolGeometry::Dims& dims,
                                                     int64_t pixel) {
  return {pixel / dims[2] / dims[1], pixel / dims[2] % dims[1], pixel % dims[2]};
}

/// Elements of the window of output `at` within the input; with `padded`, within its padding too,
/// as PoolGeometry::padded_count().
__device__ inline int64_t window_count(const cpu::PoolGeometry& g,
                                       const cpu::PoolGeometry::Dims& at, bool padded) {
  int64_t count = 1;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t first = at[d] * g.stride[d] - g.pad_begin[d];
    const int64_t end = padded ? g.in[d] + g.pad_end[d] : g.in[d];
    int64_t inside = 0;
    for (int64_t k = 0; k < g.kernel[d]; ++k) {
      const int64_t place = first + k * g.dilation[d];
      inside += place < end && (padded || place >= 0) ? 1 : 0;
    }
    count *= inside;
  }
  return count;
}

/// Outputs along one dim whose windows have an input position: from the first, `step` apart is
/// where they may be.
struct OutputRange {
  int64_t first, last;
};
__device__ inline OutputRange outputs_over(const cpu::PoolGeometry& g, size_t d, int64_t position) {
  const int64_t reach = position + g.pad_begin[d];
  const int64_t least = reach - (g.kernel[d] - 1) * g.dilation[d];
  const int64_t first = least <= 0 ? 0 : (least + g.stride[d] - 1) / g.stride[d];
  const int64_t last = reach / g.stride[d];
  return {first, last < g.out[d] ? last : g.out[d] - 1};
}

/// Does the window of output `o` have an element there, and not only reach over it?
__device__ inline bool meets(const cpu::PoolGeometry& g, size_t d, int64_t o, int64_t position) {
  return (position + g.pad_begin[d] - o * g.stride[d]) % g.dilation[d] == 0;
}

/// Calls `body(output, its place)` for all outputs whose windows have the input at `at`, in order.
template <class Body>
__device__ void for_windows_over(const cpu::PoolGeometry& g, const cpu::PoolGeometry::Dims& at,
                                 const Body& body) {
  const OutputRange ds = outputs_over(g, 0, at[0]), hs = outputs_over(g, 1, at[1]),
                    ws = outputs_over(g, 2, at[2]);
  for (int64_t d = ds.first; d <= ds.last; ++d) {
    if (!meets(g, 0, d, at[0])) continue;
    for (int64_t h = hs.first; h <= hs.last; ++h) {
      if (!meets(g, 1, h, at[1])) continue;
      for (int64_t w = ws.first; w <= ws.last; ++w) {
        if (meets(g, 2, w, at[2]))
          body((d * g.out[1] + h) * g.out[2] + w, cpu::PoolGeometry::Dims{d, h, w});
      }
    }
  }
}

}  // namespace halfnote::HN_CUDA
