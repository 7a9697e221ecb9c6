// A radix sort by digits of four bits, from the lowest on. Each pass counts the digits of every
// block, adds up where each digit of each block begins, and puts the pairs there in their order.
#include "kernels/cuda/movement/sort.h"

#include <utility>

#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;
constexpr int kItems = 8;  // of a thread, neighbours
constexpr int64_t kBlockItems = int64_t{kBlock} * kItems;

/// The sum of `value` over all threads before this one; `total` is that of all threads.
__device__ uint32_t sum_before(uint32_t value, uint32_t& total) {
  HN_SHARED(uint32_t[kBlock / 32], of_warps);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const uint32_t below = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += below;
  }
  __syncthreads();  // of_warps may still be read for the last sum
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  uint32_t before = 0;
  total = 0;
  for (unsigned w = 0; w < kBlock / 32; ++w) {
    if (w < warp) before += of_warps[w];
    total += of_warps[w];
  }
  return before + sum - value;
}

struct Pass {
  const uint32_t *keys, *positions;  // no positions: each pair is at its own
  uint32_t *keys_to, *positions_to;
  uint32_t* starts;  // of digit d in block b: starts[d·blocks + b]
  int64_t count, blocks;
  int shift;

  __device__ int digit(int64_t i) const {
    return static_cast<int>(keys[i] >> shift & (kDigits - 1));
  }
};

using DigitCounts = uint16_t[kDigits][kBlock];

/// The digits of the items of every thread.
__device__ void count_items(const Pass& pass, DigitCounts& counts) {
  for (int d = 0; d < kDigits; ++d) counts[d][threadIdx.x] = 0;
  const int64_t first = int64_t{blockIdx.x} * kBlockItems + int64_t{threadIdx.x} * kItems;
  for (int64_t i = first; i < first + kItems && i < pass.count; ++i) {
    ++counts[pass.digit(i)][threadIdx.x];
  }
}

__global__ void __launch_bounds__(kBlock) count_digits(Pass pass) {
  HN_SHARED(DigitCounts, counts);
  count_items(pass, counts);
  for (int d = 0; d < kDigits; ++d) {
    uint32_t total = 0;
    sum_before(counts[d][threadIdx.x], total);
    if (threadIdx.x == 0) pass.starts[d * pass.blocks + blockIdx.x] = total;
  }
}

/// Counts become starts: one block, which carries the sum from part to part.
__global__ void __launch_bounds__(kBlock) add_up(uint32_t* starts, int64_t count) {
  uint32_t carried = 0;
  for (int64_t part = 0; part < count; part += kBlock) {
    const int64_t i = part + threadIdx.x;
    const uint32_t value = i < count ? starts[i] : 0;
    uint32_t total = 0;
    const uint32_t before = sum_before(value, total);
    if (i < count) starts[i] = carried + before;
    carried += total;
  }
}

__global__ void __launch_bounds__(kBlock) place_pairs(Pass pass) {
  HN_SHARED(DigitCounts, counts);
  count_items(pass, counts);
  uint32_t next[kDigits];
  for (int d = 0; d < kDigits; ++d) {
    uint32_t total = 0;
    next[d] = pass.starts[d * pass.blocks + blockIdx.x] + sum_before(counts[d][threadIdx.x], total);
  }
  const int64_t first = int64_t{blockIdx.x} * kBlockItems + int64_t{threadIdx.x} * kItems;
  for (int64_t i = first; i < first + kItems && i < pass.count; ++i) {
    const uint32_t to = next[pass.digit(i)]++;
    pass.keys_to[to] = pass.keys[i];
    pass.positions_to[to] =
        pass.positions == nullptr ? static_cast<uint32_t>(i) : pass.positions[i];
  }
}

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

PositionSort::PositionSort(int64_t count, int64_t keys)
    : count_(count), blocks_((count + kBlockItems - 1) / kBlockItems), passes_(1) {
  while (((keys - 1) >> (kDigitBits * passes_)) > 0) ++passes_;
}

size_t PositionSort::workspace_bytes() const {
  const size_t list = round_up(static_cast<size_t>(count_) * sizeof(uint32_t));
  return 4 * list + round_up(static_cast<size_t>(kDigits * blocks_) * sizeof(uint32_t));
}

uint32_t* PositionSort::keys(std::byte* workspace) const {
  return reinterpret_cast<uint32_t*>(workspace);
}

SortedPositions PositionSort::sort(Stream& stream, std::byte* workspace) const {
  const size_t list = round_up(static_cast<size_t>(count_) * sizeof(uint32_t));
  const auto part = [&](size_t i) { return reinterpret_cast<uint32_t*>(workspace + i * list); };
  uint32_t *keys = part(0), *positions = nullptr, *keys_to = part(1), *positions_to = part(2);
  uint32_t* spare = part(3);
  const auto blocks = static_cast<unsigned>(blocks_);
  for (int p = 0; p < passes_; ++p) {
    const Pass pass{keys,    positions, keys_to, positions_to,
                    part(4), count_,    blocks_, p * kDigitBits};
    launch(stream, count_digits, blocks, kBlock, 0, pass);
    launch(stream, add_up, 1u, kBlock, 0, pass.starts, kDigits * blocks_);
    launch(stream, place_pairs, blocks, kBlock, 0, pass);
    std::swap(keys, keys_to);
    positions = positions == nullptr ? std::exchange(positions_to, spare)
                                     : std::exchange(positions_to, positions);
  }
  return {keys, positions};
}

}  // namespace halfnote::HN_CUDA
