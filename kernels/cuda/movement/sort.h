// Sorting positions by keys, stably: what makes a scatter deterministic without atomics.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

namespace halfnote::HN_CUDA {

/// Positions 0 … count − 1, in the order of their keys; equal keys keep the order of the positions.
struct SortedPositions {
  const uint32_t* keys = nullptr;
  const uint32_t* positions = nullptr;
};

class PositionSort {
 public:
  /// `keys`: each key is below it. Both sizes are below 2^32.
  PositionSort(int64_t count, int64_t keys);

  size_t workspace_bytes() const;
  /// Where the caller writes the key of every position, in the workspace, before sort().
  uint32_t* keys(std::byte* workspace) const;
  /// The result stays in the workspace.
  SortedPositions sort(Stream& stream, std::byte* workspace) const;

 private:
  int64_t count_ = 0, blocks_ = 0;
  int passes_ = 0;
};

}  // namespace halfnote::HN_CUDA
