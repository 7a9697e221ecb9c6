// Det of square matrices, by elimination with the largest pivot, in f64: a block takes a matrix,
// in shared memory, or in the workspace if it is too large. The pivots are the CPU's.
#include "kernels/cpu/contraction/determinant.h"

#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::DetPlan;

constexpr int64_t kMostMatrixShared = 98 * 1024;         // bytes of a block, from sm_80 on
constexpr int64_t kMostMatrixRoom = int64_t{256} << 20;  // bytes of large matrices under way

struct Matrices {
  DetPlan plan;
  RealPointer from;
  RealOutput to;
  double* room = nullptr;  // one matrix for each block; null: in shared memory
};

/// The row of the largest element of column k, from row k on; the first of equal ones, and row k if
/// that has a NaN. By one warp.
__device__ int64_t find_pivot(const double* a, int64_t n, int64_t k) {
  const double first = fabs(a[k * n + k]);
  if (first != first) return k;
  double largest = -1;
  int64_t row = k;
  for (int64_t i = k + threadIdx.x; i < n; i += 32) {
    const double x = fabs(a[i * n + k]);
    if (!(x > largest)) continue;
    largest = x;
    row = i;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, largest, distance);
    const int64_t other_row = __shfl_xor_sync(0xffffffffu, row, distance);
    if (other > largest || (other == largest && other_row < row)) {
      largest = other;
      row = other_row;
    }
  }
  return row;
}

/// Overwrites the n × n matrix; every thread of the block gets the determinant.
__device__ double eliminate(double* a, int64_t n) {
  HN_SHARED(int64_t, pivot_of_block);
  double product = 1;
  for (int64_t k = 0; k < n; ++k) {
    if (threadIdx.x < 32) {
      const int64_t found = find_pivot(a, n, k);
      if (threadIdx.x == 0) pivot_of_block = found;
    }
    __syncthreads();
    const int64_t pivot = pivot_of_block;
    const double value = a[pivot * n + k];
    if (value == 0) return 0;
    product *= pivot == k ? value : -value;
    __syncthreads();  // before rows are swapped
    for (int64_t j = k + threadIdx.x; pivot != k && j < n; j += blockDim.x) {
      const double x = a[pivot * n + j];
      a[pivot * n + j] = a[k * n + j];
      a[k * n + j] = x;
    }
    __syncthreads();
    for (int64_t i = k + 1 + threadIdx.x; i < n; i += blockDim.x) a[i * n + k] /= value;
    __syncthreads();
    const int64_t rest = n - k - 1;
    for (int64_t at = threadIdx.x; at < rest * rest; at += blockDim.x) {
      const int64_t i = k + 1 + at / rest, j = k + 1 + at % rest;
      a[i * n + j] -= a[i * n + k] * a[k * n + j];
    }
    __syncthreads();
  }
  return product;
}

__global__ void __launch_bounds__(kBlock) determinants(const __grid_constant__ Matrices matrices) {
  HN_DYNAMIC_SHARED(double, shared);
  const int64_t n = matrices.plan.n, size = n * n;
  double* a = matrices.room == nullptr ? shared : matrices.room + blockIdx.x * size;
  for (int64_t i = blockIdx.x; i < matrices.plan.count; i += gridDim.x) {
    for (int64_t at = threadIdx.x; at < size; at += blockDim.x)
      a[at] = matrices.from[i * size + at];
    __syncthreads();
    const double value = eliminate(a, n);
    if (threadIdx.x == 0) matrices.to.write(i, value);
    __syncthreads();  // before the next matrix is read
  }
}

Prepared prepare_determinant(const KernelCall& call) {
  DetPlan plan;
  if (std::string why = cpu::plan_det(call, plan); !why.empty()) return Prepared::no(why);
  const int64_t bytes = plan.n * plan.n * static_cast<int64_t>(sizeof(double));
  const bool in_shared = bytes <= kMostMatrixShared;
  const int64_t most = in_shared ? kMaxBlocks : std::max<int64_t>(1, kMostMatrixRoom / bytes);
  const int64_t blocks = std::min({plan.count, most, kMaxBlocks});
  const unsigned threads = plan.n <= 8 ? 32 : plan.n <= 16 ? 64 : kBlock;
  const auto body = [=](const KernelBuffers& buffers) {
    auto* room = in_shared ? nullptr : reinterpret_cast<double*>(buffers.workspace);
    launch(stream_of(buffers), determinants, static_cast<unsigned>(blocks), threads,
           in_shared ? static_cast<size_t>(bytes) : 0,
           Matrices{plan, {buffers.inputs[0], plan.type}, {buffers.outputs[0], plan.type}, room});
  };
  return make_kernel(body, in_shared ? 0 : static_cast<size_t>(blocks * bytes));
}

}  // namespace

std::vector<KernelRow> determinant_rows() {
  return {{"", "Det", "own.determinant", prepare_determinant}};
}

}  // namespace halfnote::HN_CUDA
