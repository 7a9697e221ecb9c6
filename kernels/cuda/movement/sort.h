// Sorting positions by keys, stably: what makes a scatter deterministic without atomics, and what
// picks many elements of long lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

namespace halfnote::HN_CUDA {

/// Positions 0 … count − 1, in the order of their keys; equal keys keep the order of the positions.
struct SortedPositions {
  const uint32_t* keys = nullptr;  // the words that were sorted by last
  const uint32_t* positions = nullptr;
};

class PositionSort {
 public:
  /// A key is one word or more: `bits` says how many bits each of them has, up to 32, from the word
  /// that counts least on. The count is below 2^32.
  PositionSort(int64_t count, std::vector<int> bits);

  /// The bits of words that are all below `limit`, which is at most 2^32.
  static int bits_below(int64_t limit);

  size_t workspace_bytes() const;
  /// Launches of a sort: three for each digit of all words.
  int64_t launches() const;
  /// `write(word, positions, to)` queues the kernel that writes word `word` of the key of
  /// positions[i] to to[i], for all i; `positions` is null where position i is i. The result stays
  /// in the workspace.
  SortedPositions sort(
      Stream& stream, std::byte* workspace,
      const std::function<void(size_t word, const uint32_t* positions, uint32_t* to)>& write) const;

 private:
  int64_t count_ = 0, blocks_ = 0;
  std::vector<int> passes_;  // of each word
};

}  // namespace halfnote::HN_CUDA
