// The program's operator new and delete, on mimalloc. Those of a mimalloc that is compiled as C (so
// distributions build it) end the program where there is no memory; these throw std::bad_alloc, as
// a caller, the libraries among them, may expect. They stand alone, so that the compiler sees no
// pair of new and free in one place; a program with sanitizers keeps theirs.
#include <new>

#ifdef HALFNOTE_MIMALLOC
#include <mimalloc.h>

namespace {

/// What `allocate` gives, or nothing once there is no handler of new that could make room.
template <class Allocate>
void* try_new(const Allocate& allocate) {
  for (;;) {
    if (void* memory = allocate()) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) return nullptr;
    handler();
  }
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* try_plain(size_t size) {
  return try_new([=] { return mi_malloc(size); });
}

void* try_aligned(size_t size, std::align_val_t alignment) {
  return try_new([=] { return mi_malloc_aligned(size, static_cast<size_t>(alignment)); });
}

template <class... Arguments>
void* without_throwing(void* (*allocate)(Arguments...), Arguments... arguments) noexcept {
  try {
    return allocate(arguments...);
  } catch (const std::bad_alloc&) {  // of a handler
    return nullptr;
  }
}

}  // namespace

using std::align_val_t;
using std::nothrow_t;

void* operator new(size_t size) { return or_throw(try_plain(size)); }
void* operator new[](size_t size) { return or_throw(try_plain(size)); }
void* operator new(size_t size, align_val_t alignment) {
  return or_throw(try_aligned(size, alignment));
}
void* operator new[](size_t size, align_val_t alignment) {
  return or_throw(try_aligned(size, alignment));
}
void* operator new(size_t size, const nothrow_t&) noexcept {
  return without_throwing(try_plain, size);
}
void* operator new[](size_t size, const nothrow_t&) noexcept {
  return without_throwing(try_plain, size);
}
void* operator new(size_t size, align_val_t alignment, const nothrow_t&) noexcept {
  return without_throwing(try_aligned, size, alignment);
}
void* operator new[](size_t size, align_val_t alignment, const nothrow_t&) noexcept {
  return without_throwing(try_aligned, size, alignment);
}
void operator delete(void* memory) noexcept { mi_free(memory); }
void operator delete[](void* memory) noexcept { mi_free(memory); }
void operator delete(void* memory, size_t) noexcept { mi_free(memory); }
void operator delete[](void* memory, size_t) noexcept { mi_free(memory); }
void operator delete(void* memory, align_val_t) noexcept { mi_free(memory); }
void operator delete[](void* memory, align_val_t) noexcept { mi_free(memory); }
void operator delete(void* memory, size_t, align_val_t) noexcept { mi_free(memory); }
void operator delete[](void* memory, size_t, align_val_t) noexcept { mi_free(memory); }
void operator delete(void* memory, const nothrow_t&) noexcept { mi_free(memory); }
void operator delete[](void* memory, const nothrow_t&) noexcept { mi_free(memory); }
void operator delete(void* memory, align_val_t, const nothrow_t&) noexcept { mi_free(memory); }
void operator delete[](void* memory, align_val_t, const nothrow_t&) noexcept { mi_free(memory); }

#endif
