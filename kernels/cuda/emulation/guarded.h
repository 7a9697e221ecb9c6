// Memory of the emulated device, to the byte: under the address sanitizer nobody may touch what
// lies before it or behind it, not even the rest of the last 16 bytes, which a load of a pack would
// read unseen on a GPU.
#pragma once

#include <cstddef>
#include <memory>

namespace halfnote::emulation {

/// What nobody may touch before and behind a block, where there is an address sanitizer.
inline constexpr size_t kGuardBytes = 1024;

struct ReleaseGuarded {
  void operator()(std::byte* memory) const;
};
using Guarded = std::unique_ptr<std::byte, ReleaseGuarded>;

/// `bytes` bytes (none, too) at a multiple of `alignment`, a power of two from 16 to kGuardBytes;
/// null if the host has no more.
Guarded allocate_guarded(size_t bytes, size_t alignment);

/// From now on an access to these bytes of such a block is an error for the address sanitizer,
/// where there is one. Of 8 bytes at a multiple of 8 it cannot forbid the first ones alone.
void forbid_access(const void* memory, size_t bytes);

}  // namespace halfnote::emulation
