// A radix sort by digits of four bits, from the lowest of the word that counts least on. Each pass
// counts the digits of every block, adds up where each digit of each block begins, and puts the
// pairs there in their order.
#include "kernels/cuda/movement/sort.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;
constexpr int kItems = 8;  // of a thread, neighbours
constexpr int64_t kBlockItems = int64_t{kBlock} * kItems;

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

/// The digits of the items of every thread, four to a word: what a block has of one fits 16 bits.
constexpr int kInWord = 4, kDigitWords = kDigits / kInWord;
using DigitCounts = uint64_t[kDigitWords][kBlock];
static_assert(kBlockItems < 1 << 16);

__device__ uint32_t count_in(uint64_t word, int digit) {
  return static_cast<uint32_t>(word >> (16 * (digit % kInWord)) & 0xffff);
}

__device__ void count_items(const Pass& pass, DigitCounts& counts) {
  for (int w = 0; w < kDigitWords; ++w) counts[w][threadIdx.x] = 0;
  const int64_t first = int64_t{blockIdx.x} * kBlockItems + int64_t{threadIdx.x} * kItems;
  for (int64_t i = first; i < first + kItems && i < pass.count; ++i) {
    const int digit = pass.digit(i);
    counts[digit / kInWord][threadIdx.x] += uint64_t{1} << (16 * (digit % kInWord));
  }
}

__global__ void __launch_bounds__(kBlock) count_digits(Pass pass) {
  HN_SHARED(DigitCounts, counts);
  count_items(pass, counts);
  for (int w = 0; w < kDigitWords; ++w) {
    uint64_t total = 0;
    sum_of_earlier<kBlock>(counts[w][threadIdx.x], total);
    if (threadIdx.x >= kInWord) continue;
    const int d = w * kInWord + static_cast<int>(threadIdx.x);
    pass.starts[d * pass.blocks + blockIdx.x] = count_in(total, d);
  }
}

/// Counts become starts: one block, which carries the sum from part to part.
__global__ void __launch_bounds__(kBlock) add_up(uint32_t* starts, int64_t count) {
  uint32_t carried = 0;
  for (int64_t part = 0; part < count; part += kBlockItems) {
    const int64_t first = part + int64_t{threadIdx.x} * kItems;
    uint32_t values[kItems], mine = 0, total = 0;
    HN_UNROLL
    for (int k = 0; k < kItems; ++k) {
      values[k] = first + k < count ? starts[first + k] : 0;
      mine += values[k];
    }
    uint32_t next = carried + sum_of_earlier<kBlock>(mine, total);
    HN_UNROLL
    for (int k = 0; k < kItems; ++k) {
      if (first + k < count) starts[first + k] = next;
      next += values[k];
    }
    carried += total;
  }
}

__global__ void __launch_bounds__(kBlock) place_pairs(Pass pass) {
  HN_SHARED(DigitCounts, counts);
  count_items(pass, counts);
  // Where the next item of each digit goes, a line of shared memory a digit: it is indexed.
  HN_SHARED(uint32_t[kDigits][kBlock], next);
  for (int w = 0; w < kDigitWords; ++w) {
    uint64_t total = 0;
    const uint64_t before = sum_of_earlier<kBlock>(counts[w][threadIdx.x], total);
    for (int d = w * kInWord; d < (w + 1) * kInWord; ++d)
      next[d][threadIdx.x] = pass.starts[d * pass.blocks + blockIdx.x] + count_in(before, d);
  }
  const int64_t first = int64_t{blockIdx.x} * kBlockItems + int64_t{threadIdx.x} * kItems;
  for (int64_t i = first; i < first + kItems && i < pass.count; ++i) {
    const uint32_t to = next[pass.digit(i)][threadIdx.x]++;
    pass.keys_to[to] = pass.keys[i];
    pass.positions_to[to] =
        pass.positions == nullptr ? static_cast<uint32_t>(i) : pass.positions[i];
  }
}

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

PositionSort::PositionSort(int64_t count, std::vector<int> bits)
    : count_(count), blocks_((count + kBlockItems - 1) / kBlockItems), passes_(std::move(bits)) {
  for (int& passes : passes_) passes = std::max(1, (passes + kDigitBits - 1) / kDigitBits);
}

int PositionSort::bits_below(int64_t limit) {
  int bits = 0;
  while ((limit - 1) >> bits > 0) ++bits;
  return bits;
}

size_t PositionSort::workspace_bytes() const {
  const size_t list = round_up(static_cast<size_t>(count_) * sizeof(uint32_t));
  return 4 * list + round_up(static_cast<size_t>(kDigits * blocks_) * sizeof(uint32_t));
}

int64_t PositionSort::launches() const {
  return 3 * std::accumulate(passes_.begin(), passes_.end(), int64_t{0});
}

SortedPositions PositionSort::sort(
    Stream& stream, std::byte* workspace,
    const std::function<void(size_t, const uint32_t*, uint32_t*)>& write) const {
  const size_t list = round_up(static_cast<size_t>(count_) * sizeof(uint32_t));
  const auto part = [&](size_t i) { return reinterpret_cast<uint32_t*>(workspace + i * list); };
  uint32_t *keys = part(0), *positions = nullptr, *keys_to = part(1), *positions_to = part(2);
  uint32_t* spare = part(3);
  const auto blocks = static_cast<unsigned>(blocks_);
  for (size_t word = 0; word < passes_.size(); ++word) {
    write(word, positions, keys);
    for (int p = 0; p < passes_[word]; ++p) {
      const Pass pass{keys,    positions, keys_to, positions_to,
                      part(4), count_,    blocks_, p * kDigitBits};
      launch(stream, count_digits, blocks, kBlock, 0, pass);
      launch(stream, add_up, 1u, kBlock, 0, pass.starts, kDigits * blocks_);
      launch(stream, place_pairs, blocks, kBlock, 0, pass);
      std::swap(keys, keys_to);
      positions = positions == nullptr ? std::exchange(positions_to, spare)
                                       : std::exchange(positions_to, positions);
    }
  }
  return {keys, positions};
}

}  // namespace halfnote::HN_CUDA
