// The kernels on tensors in channel blocks (kernels/layout.h), file by file, and what they share.
#pragma once

#include <string>

#include "kernels/cpu/blocked/loops.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::blocked {

/// A tensor in channel blocks: block b of image n is a plane of `plane` lines.
struct Geometry {
  int64_t images = 0, blocks = 0, plane = 0;

  int64_t channels() const { return blocks * kBlockChannels; }
  int64_t planes() const { return images * blocks; }
};
Geometry geometry_of(const Shape& shape);

/// Sums over images and pixels, shared out: the images of a block of channels in groups. The groups
/// depend on the shape alone, so the sums do too.
struct Groups {
  explicit Groups(const Geometry& geometry);
  int64_t units() const { return geometry.blocks * count; }
  /// Are there blocks enough for the threads to take whole ones? Then a block's second pass finds
  /// it in a cache.
  bool block_by_block(int threads) const { return geometry.blocks >= 2 * threads; }
  /// Calls `body(unit, plane)` for all planes of a block, in order.
  template <class Body>
  void for_block(int64_t block, const Body& body) const {
    for (int64_t n = 0; n < geometry.images; ++n) {
      body(block * count + n / images, n * geometry.blocks + block);
    }
  }
  /// Calls `body(unit, block, plane)` for all planes of all units, in order within a unit.
  template <class Body>
  void for_planes(int threads, const Body& body) const {
    parallel_blocks(units(), 1, threads, [&](int64_t unit, int64_t) {
      const int64_t block = unit / count, first = unit % count * images;
      for (int64_t n = first; n < std::min(geometry.images, first + images); ++n) {
        body(unit, block, n * geometry.blocks + block);
      }
    });
  }

  Geometry geometry;
  int64_t count = 0;   // groups of a block of channels
  int64_t images = 0;  // of a group
};

/// Plane `plane` of a tensor whose planes have `lines` lines.
inline const std::byte* plane_at(const std::byte* x, DType type, int64_t plane, int64_t lines) {
  return x + plane * lines * kBlockChannels * static_cast<int64_t>(size_of(type));
}
inline std::byte* plane_at(std::byte* x, DType type, int64_t plane, int64_t lines) {
  return x + plane * lines * kBlockChannels * static_cast<int64_t>(size_of(type));
}

/// Can all the named operands be in channel blocks?
bool fit(const KernelCall& call, uint32_t inputs, uint32_t outputs);
/// The answer of rows whose operands change their layout together: those that are named, if all of
/// them fit.
BlockedOperands together(const KernelCall& call, uint32_t inputs, uint32_t outputs);

const KernelRow& reorder_row();
std::vector<BlockedRow> batch_norm_rows();
std::vector<BlockedRow> max_pool_rows();
std::vector<BlockedRow> sum_rows();            // sums.cc: ReduceSum over all but the channels
std::vector<BlockedRow> weight_1x1_rows();     // ConvGradWeight of 1×1 convolutions
std::vector<BlockedRow> depthwise_rows();      // depthwise/blocked.cc
std::vector<BlockedRow> swapped_rows();        // thin/swapped.cc
std::vector<BlockedRow> few_positions_rows();  // thin/few_positions.cc
std::vector<BlockedRow> conv_rows();           // onednn/conv.cc: Conv and its gradients

}  // namespace halfnote::cpu::blocked
