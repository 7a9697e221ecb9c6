// The sanitizer knows for each 8 bytes how many of them, from the first on, may be touched: so a
// block ends where it ends, and begins at a multiple of 8.
#include "kernels/cuda/emulation/guarded.h"

#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace halfnote::emulation {

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kGuard = kGuardBytes;
#else
constexpr size_t kGuard = 0;
#endif

}  // namespace

void forbid_access([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory, bytes);
#endif
}

Guarded allocate_guarded(size_t bytes, size_t alignment) {
  constexpr size_t kMost = SIZE_MAX - 2 * kGuardBytes;
  void* memory = nullptr;
  // One byte at least: what is empty has an address of its own too.
  const size_t all = (bytes == 0 ? 1 : bytes) + 2 * kGuard;
  if (bytes > kMost || posix_memalign(&memory, alignment, all) != 0) return nullptr;
  auto* const own = static_cast<std::byte*>(memory) + kGuard;
  forbid_access(memory, kGuard);
  forbid_access(own + bytes, all - kGuard - bytes);
  return Guarded(own);
}

void ReleaseGuarded::operator()(std::byte* memory) const { std::free(memory - kGuard); }

}  // namespace halfnote::emulation
