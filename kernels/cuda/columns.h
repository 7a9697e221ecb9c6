// The second stage of sums over rows: partial results, a row of them for each slice, are merged
// column by column. Few slices are merged by a thread a column, many by 32 or 64 threads a column,
// each of which takes every 32nd or 64th slice. The order depends on the shape alone.
//
//   struct Body {
//     using Sum = double;
//     __device__ static Sum neutral();
//     __device__ static Sum merge(Sum a, Sum b);
//     __device__ Sum part(int64_t slice, int64_t column) const;
//     __device__ void finish(int64_t column, Sum sum) const;
//   };
#pragma once

#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// Slices up to which a thread merges a column alone.
inline constexpr int64_t kFewSlices = 8;

template <class Body>
struct MergeColumn {
  Body body;
  int64_t slices;
  __device__ void operator()(int64_t column) const {
    typename Body::Sum sum = Body::neutral();
    for (int64_t s = 0; s < slices; ++s) sum = Body::merge(sum, body.part(s, column));
    body.finish(column, sum);
  }
};

/// kWidth columns a block, of 4 or more: what neighbours read are whole sectors, and there are
/// blocks for a GPU.
template <unsigned kWidth, class Body>
__global__ void __launch_bounds__(kBlock)
    merge_columns_kernel(const __grid_constant__ Body body, int64_t columns, int64_t slices) {
  using Sum = typename Body::Sum;
  constexpr unsigned kDepth = kBlock / kWidth;
  HN_SHARED(Sum[kBlock], all);
  const unsigned row = threadIdx.x / kWidth;
  for (int64_t first = int64_t{blockIdx.x} * kWidth; first < columns;
       first += int64_t{gridDim.x} * kWidth) {
    const int64_t column = first + threadIdx.x % kWidth;
    Sum sum = Body::neutral();
    if (column < columns) {
      HN_UNROLL_BY_4
      for (int64_t s = row; s < slices; s += kDepth) sum = Body::merge(sum, body.part(s, column));
    }
    __syncthreads();  // it may still be read for the columns before
    all[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = kBlock / 2; half >= kWidth; half /= 2) {
      if (threadIdx.x < half)
        all[threadIdx.x] = Body::merge(all[threadIdx.x], all[threadIdx.x + half]);
      __syncthreads();
    }
    if (row == 0 && column < columns) body.finish(column, all[threadIdx.x]);
  }
}

/// Merges the slices of each column and calls `body.finish()` with what comes out.
template <class Body>
void merge_columns(Stream& stream, const Body& body, int64_t columns, int64_t slices) {
  if (slices <= kFewSlices) return for_each(stream, columns, MergeColumn<Body>{body, slices});
  const auto merge = [&]<unsigned kWidth>() {
    const int64_t blocks = std::min<int64_t>(blocks_for(columns, kWidth), kMaxBlocks);
    launch(stream, merge_columns_kernel<kWidth, Body>, static_cast<unsigned>(blocks), kBlock, 0,
           body, columns, slices);
  };
  // Few slices a thread, all on their way at once.
  if (slices > int64_t{4} * kBlock / 8) {
    merge.template operator()<4>();
  } else {
    merge.template operator()<8>();
  }
}

/// Sums of one kind, in f64.
struct AddedParts {
  using Sum = double;
  __device__ static Sum neutral() { return 0; }
  __device__ static Sum merge(Sum a, Sum b) { return a + b; }
};

}  // namespace halfnote::HN_CUDA
