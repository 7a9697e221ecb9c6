// The program's operator new and delete. They stand alone, so that the compiler sees no pair of new
// and free in one place.
#include "count_new.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<size_t> calls{0}, total{0};

void* counted(size_t size, size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) {
    calls.fetch_add(1, std::memory_order_relaxed);
    total.fetch_add(size, std::memory_order_relaxed);
  }
  const size_t rounded = (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// All forms: one left to a sanitizer's runtime would pair with a delete of ours.
using std::align_val_t;
using std::nothrow_t;

void* operator new(size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new[](size_t size) { return operator new(size); }
void* operator new(size_t size, align_val_t alignment) {
  return counted(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, align_val_t alignment) { return operator new(size, alignment); }
void* operator new(size_t size, const nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](size_t size, const nothrow_t& none) noexcept {
  return operator new(size, none);
}
void* operator new(size_t size, align_val_t alignment, const nothrow_t&) noexcept {
  try {
    return operator new(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](size_t size, align_val_t alignment, const nothrow_t& none) noexcept {
  return operator new(size, alignment, none);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }

namespace halfnote::test {

Probe::Probe() {
  calls = 0;
  total = 0;
  counting = true;
}

Probe::~Probe() { counting = false; }

size_t Probe::bytes() const { return total; }

size_t Probe::now() { return calls; }

}  // namespace halfnote::test
