// Memory of a GPU for one test's call after the other. Asking a GPU for memory and giving it back
// takes longer than most calls do, so what one call had the next one gets again.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/device.h"

namespace halfnote::test {

/// Pieces of large blocks, taken one after the other until all are free again. Behind each piece
/// lie bytes of a known value: who writes over its end is found.
class Reserve {
 public:
  /// Bytes of a block; what is larger is a block of its own.
  static constexpr size_t kBlock = size_t{64} << 20;
  /// Bytes of a known value behind each piece.
  static constexpr size_t kGuard = 256;

  Reserve(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  /// `bytes` bytes, `offset` behind an aligned address.
  std::byte* take(size_t bytes, size_t offset);
  /// Waits for the stream. How many pieces have other bytes behind their end than were put there;
  /// all are free from then on.
  size_t free_all();

 private:
  struct Block {
    Device::Memory memory;
    size_t size = 0, taken = 0;
  };
  std::byte* find(size_t bytes);

  Device& device_;
  Stream& stream_;
  std::vector<Block> blocks_;
  std::vector<std::byte*> guards_;
};

}  // namespace halfnote::test
