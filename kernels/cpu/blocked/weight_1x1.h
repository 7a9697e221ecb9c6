// The inner loops of the gradient of 1×1 weights on channel blocks: dW = dY·Xᵀ over pixels, tile by
// tile, with vectors of 16 channels of X and single filters of dY.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/layout.h"

namespace halfnote::cpu::blocked {

/// Filters and channels of a tile of dW at most, and the pixels that are packed at a time.
inline constexpr int64_t kTileFilters = 128, kTileChannels = 128, kTilePixels = 128;

/// Lines of a tensor in channel blocks: line i of block b is at data + (lines[i] + b·block)·16.
struct PixelLines {
  const void* data = nullptr;
  const int64_t* lines = nullptr;
  int64_t count = 0;  // ≤ kTilePixels
  int64_t block = 0;
  int64_t blocks = 0;
};

struct WeightLoops {
  /// Bytes of a block of kTilePixels packed lines.
  int64_t packed_block = 0;
  /// Packs the lines of all blocks, one block behind the other.
  void (*pack)(const PixelLines& from, void* to);
  /// Adds dY·Xᵀ of packed lines to sums[f·stride + c], and fetches what will be packed next.
  void (*multiply)(const void* dy, int64_t filter_blocks, const void* x, int64_t channel_blocks,
                   int64_t pixels, float* sums, int64_t stride, const PixelLines* next);
};

/// For f32 with AVX-512, for bf16 with its dot products; else null.
const WeightLoops* weight_loops_for(DType dtype);

}  // namespace halfnote::cpu::blocked
