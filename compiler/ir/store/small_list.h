// A list that keeps up to N elements in itself: most nodes have few operands and most values few
// readers, and a list of its own on the heap would cost more than what stands in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

namespace halfnote {

/// A vector of plain elements; it goes to the heap with its element N + 1 and stays there.
template <class T, uint32_t N>
class SmallList {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  static_assert(N * sizeof(T) >= sizeof(T*));

 public:
  SmallList() = default;
  SmallList(const SmallList& other) { append(other); }
  SmallList(SmallList&& other) noexcept { take(other); }
  SmallList& operator=(const SmallList& other) {
    if (this == &other) return *this;
    clear();
    append(other);
    return *this;
  }
  SmallList& operator=(SmallList&& other) noexcept {
    if (this == &other) return *this;
    release();
    take(other);
    return *this;
  }
  ~SmallList() { release(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return capacity_ == N ? own() : heap(); }
  const T* data() const { return const_cast<SmallList*>(this)->data(); }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](size_t index) { return data()[index]; }
  const T& operator[](size_t index) const { return data()[index]; }
  T& back() { return data()[size_ - 1]; }

  void push_back(T element) {
    if (size_ == capacity_) grow(size_ + 1);
    data()[size_++] = element;
  }
  void pop_back() { --size_; }
  void clear() { size_ = 0; }

 private:
  T* own() { return reinterpret_cast<T*>(store_); }
  T* heap() {
    T* elements;
    std::memcpy(&elements, store_, sizeof elements);
    return elements;
  }
  void grow(uint32_t needed) {
    const uint32_t capacity = std::max(needed, capacity_ * 2);
    T* const elements = std::allocator<T>().allocate(capacity);
    std::uninitialized_copy_n(data(), size_, elements);
    release();
    std::memcpy(store_, &elements, sizeof elements);
    capacity_ = capacity;
  }
  void append(const SmallList& other) {
    if (other.size_ > capacity_) grow(other.size_);
    std::uninitialized_copy_n(other.data(), other.size_, data());
    size_ = other.size_;
  }
  /// Only for a list that holds nothing on the heap.
  void take(SmallList& other) noexcept {
    std::memcpy(store_, other.store_, sizeof store_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, N);
  }
  void release() noexcept {
    if (capacity_ != N) std::allocator<T>().deallocate(heap(), capacity_);
    capacity_ = N;
  }

  uint32_t size_ = 0, capacity_ = N;
  alignas(T) std::byte store_[N * sizeof(T)];  // the elements, or where they are
};

}  // namespace halfnote
