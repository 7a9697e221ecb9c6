// What the CUDA kernels share: a kernel over positions, strided walks, sums over a block.
//
// How the hundreds of operators get here without being written twice: what an operator means is
// split into a plan (host code: shapes, strides, attributes, refusals; kernels/cpu/*/plan.h and the
// like), a formula for one element or one merge (kernels/math, host and device), and a walk. Only
// the walks differ between CPU and CUDA, and there are few: for_each() over positions, Strided
// operands under it for everything that broadcasts, permutes, slices or pads, row reductions,
// column reductions. A new operator is a plan and a formula; its row on either device is a few
// lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/cpu/runs.h"
#include "kernels/cpu/support.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/strided.h"
#include "kernels/math/host_device.h"

namespace halfnote::HN_CUDA {

using cpu::attributes_of;
using cpu::for_element_size;
using cpu::for_float_type;
using cpu::make_kernel;
using cpu::Runs;

inline constexpr unsigned kBlock = 256;
/// Multiprocessors that grids are made for, those of an H100. It does not follow the GPU at hand:
/// how elements are shared out to blocks is the order of their sums, which is the same on all GPUs.
inline constexpr int64_t kMultiprocessors = 132;
/// Blocks of a grid that walks on: enough to fill any GPU of today several times over.
inline constexpr int64_t kMaxBlocks = kMultiprocessors * 16;

template <class Body>
__global__ void __launch_bounds__(kBlock)
    for_each_kernel(const __grid_constant__ Body body, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kBlock;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < count; i += step) body(i);
}

/// Calls `body(i)` for all i < count, each on some thread. The body is a struct of plain members
/// with `__device__ void operator()(int64_t) const`.
template <class Body>
void for_each(Stream& stream, int64_t count, const Body& body) {
  const int64_t blocks = std::min<int64_t>(blocks_for(count, kBlock), kMaxBlocks);
  launch(stream, for_each_kernel<Body>, static_cast<unsigned>(blocks), kBlock, 0, body, count);
}

/// The same walk as the CPU's; false if more dims stay than an argument holds.
template <int N>
bool as_strided(const Runs& runs, Strided<N>& to) {
  if (runs.dims.size() > Strided<N>::kDims) return false;
  to.rank = static_cast<int>(runs.dims.size());
  to.count = runs.count;
  for (size_t d = 0; d < runs.dims.size(); ++d) {
    to.dims[d] = Divisor(runs.dims[d]);
    for (size_t k = 0; k < static_cast<size_t>(N); ++k) to.strides[k][d] = runs.strides[k][d];
  }
  return true;
}

inline std::string too_many_dims() {
  return "more than " + std::to_string(Strided<1>::kDims) + " dims that do not merge";
}

/// Notes what is wrong with the data, unless something is noted already.
__device__ inline void note_fault(DeviceFault* at, const DeviceFault& found) {
  if (atomicCAS(&at->kind, static_cast<int32_t>(DeviceFault::kNone), found.kind) != 0) return;
  at->step = found.step;
  at->value = found.value;
  at->limit = found.limit;
  at->position = found.position;
  at->ignored = found.ignored;
}

__device__ inline void note_fault(FaultPlace fault, int32_t kind, int64_t value, int64_t limit) {
  note_fault(fault.at, {kind, fault.step, value, limit});
}

/// An operand of i32 or i64 indices into a dim of `size`; negative ones count from its end. What is
/// out of range is noted and read as 0.
struct IndexPointer {
  const void* data = nullptr;
  bool wide = true;

  __device__ int64_t raw(int64_t at) const {
    return wide ? static_cast<const int64_t*>(data)[at] : static_cast<const int32_t*>(data)[at];
  }
  __device__ int64_t read(int64_t at, int64_t size, FaultPlace fault) const {
    const int64_t index = raw(at);
    if (index >= -size && index < size) return index < 0 ? index + size : index;
    note_fault(fault, DeviceFault::kIndex, index, size);
    return 0;
  }
};

struct AddNumbers {
  template <class A>
  __device__ static A merge(A a, A b) {
    return a + b;
  }
};

/// Merges the values of all threads of a block of kThreads, in an order that the seed of the
/// hardware does not change; every thread gets the result. All threads of the block must come.
template <class Merge, unsigned kThreads, class A>
__device__ A merge_block(A value) {
  HN_SHARED(A[kThreads / 32], of_warps);
  for (int distance = 16; distance > 0; distance /= 2) {
    value = Merge::merge(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  __syncthreads();  // of_warps may still be read for the last result
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  A total = of_warps[0];
  for (unsigned w = 1; w < kThreads / 32; ++w) total = Merge::merge(total, of_warps[w]);
  return total;
}

}  // namespace halfnote::HN_CUDA
