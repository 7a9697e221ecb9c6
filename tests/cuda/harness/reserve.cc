#include "tests/cuda/harness/reserve.h"

#include <algorithm>
#include <span>

namespace halfnote::test {

namespace {

constexpr uint8_t kUntouched = 0xa7;
constexpr size_t kAlign = 256;  // as an allocation of its own has it

}  // namespace

std::byte* Reserve::find(size_t bytes) {
  for (Block& block : blocks_) {
    if (block.size - block.taken < bytes) continue;
    std::byte* const at = block.memory.get() + block.taken;
    block.taken += bytes;
    return at;
  }
  const size_t size = std::max(bytes, kBlock);
  blocks_.push_back({device_.allocate(size), size, bytes});
  return blocks_.back().memory.get();
}

std::byte* Reserve::take(size_t bytes, size_t offset) {
  const size_t all = (offset + bytes + kGuard + kAlign - 1) / kAlign * kAlign;
  std::byte* const piece = find(all) + offset;
  guards_.push_back(piece + bytes);
  stream_.fill(guards_.back(), kUntouched, kGuard);
  return piece;
}

size_t Reserve::free_all() {
  std::vector<std::byte> seen(guards_.size() * kGuard);
  for (size_t i = 0; i < guards_.size(); ++i)
    stream_.copy(seen.data() + i * kGuard, guards_[i], kGuard);
  stream_.synchronise();
  size_t broken = 0;
  for (size_t i = 0; i < guards_.size(); ++i) {
    const auto guard = std::span(seen).subspan(i * kGuard, kGuard);
    broken +=
        std::ranges::all_of(guard, [](std::byte b) { return b == std::byte{kUntouched}; }) ? 0 : 1;
  }
  guards_.clear();
  for (Block& block : blocks_) block.taken = 0;
  return broken;
}

}  // namespace halfnote::test
