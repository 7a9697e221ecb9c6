#include "runtime/core/memory/best_fit.h"

#include <algorithm>
#include <cassert>

namespace halfnote {

size_t BestFit::allocate(size_t bytes) {
  const size_t size = std::max(align_up(bytes), kBufferAlignment);
  in_use_ += size;
  const auto fit = free_by_size_.lower_bound({size, 0});
  if (fit != free_by_size_.end()) {
    const auto [block_size, offset] = fit->first;
    erase_free(free_by_offset_.find(offset));
    if (block_size > size) insert_free(offset + size, block_size - size);
    used_[offset] = size;
    return offset;
  }
  // No block fits: grow, taking a free block at the end with it.
  size_t offset = end_;
  if (!free_by_offset_.empty()) {
    const auto last = std::prev(free_by_offset_.end());
    if (last->first + last->second == end_) {
      offset = last->first;
      erase_free(last);
    }
  }
  end_ = offset + size;
  peak_ = std::max(peak_, end_);
  used_[offset] = size;
  return offset;
}

void BestFit::release(size_t offset) {
  const auto block = used_.find(offset);
  assert(block != used_.end());
  size_t size = block->second;
  in_use_ -= size;
  used_.erase(block);
  const auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      erase_free(before);
    }
  }
  const auto after = free_by_offset_.find(offset + size);
  if (after != free_by_offset_.end()) {
    size += after->second;
    erase_free(after);
  }
  insert_free(offset, size);
}

void BestFit::insert_free(size_t offset, size_t size) {
  free_by_offset_[offset] = size;
  free_by_size_[{size, offset}] = true;
}

void BestFit::erase_free(std::map<size_t, size_t>::iterator block) {
  free_by_size_.erase({block->second, block->first});
  free_by_offset_.erase(block);
}

}  // namespace halfnote
