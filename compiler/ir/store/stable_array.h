// An array that grows without moving what it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace halfnote {

/// References to elements stay valid until the array goes. As std::deque, but with chunks that hold
/// 64 elements however large they are (libstdc++'s hold one or two nodes of a graph), and a move
/// that cannot fail.
template <class T>
class StableArray {
 public:
  StableArray() = default;
  StableArray(const StableArray& other) {
    for (uint32_t i = 0; i < other.size_; ++i) emplace_back(other[i]);
  }
  StableArray(StableArray&& other) noexcept
      : chunks_(std::move(other.chunks_)), size_(std::exchange(other.size_, 0)) {}
  StableArray& operator=(StableArray other) noexcept {
    std::swap(chunks_, other.chunks_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~StableArray() {
    for (uint32_t i = 0; i < size_; ++i) std::destroy_at(&(*this)[i]);
  }

  uint32_t size() const { return size_; }
  T& operator[](uint32_t index) { return chunks_[index / kChunk]->elements[index % kChunk]; }
  const T& operator[](uint32_t index) const {
    return chunks_[index / kChunk]->elements[index % kChunk];
  }
  template <class... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    if (size_ == chunks_.size() * kChunk) chunks_.push_back(std::make_unique<Chunk>());
    T* const place = std::construct_at(&(*this)[size_], std::forward<Arguments>(arguments)...);
    ++size_;
    return *place;
  }

 private:
  static constexpr uint32_t kChunk = 64;

  union Chunk {  // room for elements that are not there yet
    Chunk() {}
    ~Chunk() {}
    T elements[kChunk];
  };

  std::vector<std::unique_ptr<Chunk>> chunks_;
  uint32_t size_ = 0;
};

}  // namespace halfnote
