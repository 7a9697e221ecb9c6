// Offsets of buffers in one arena, found as they come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace halfnote {

inline constexpr size_t kBufferAlignment = 64;

inline size_t align_up(size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

inline size_t align_down(size_t bytes) { return bytes / kBufferAlignment * kBufferAlignment; }

/// Best fit in time order: allocate and release as the steps go by; the arena is as large as it
/// ever had to be. O(log n) a call. A released block merges with its free neighbours.
class BestFit {
 public:
  /// The offset of a block of at least `bytes` (zero bytes take the smallest block).
  size_t allocate(size_t bytes);
  void release(size_t offset);
  /// Bytes of the whole arena so far, and bytes in use now.
  size_t peak() const { return peak_; }
  size_t in_use() const { return in_use_; }

 private:
  void insert_free(size_t offset, size_t size);
  void erase_free(std::map<size_t, size_t>::iterator block);

  std::map<size_t, size_t> free_by_offset_;                 // offset -> size
  std::map<std::pair<size_t, size_t>, bool> free_by_size_;  // (size, offset)
  std::map<size_t, size_t> used_;                           // offset -> size
  size_t end_ = 0, peak_ = 0, in_use_ = 0;
};

}  // namespace halfnote
