#include "kernels/cuda/emulation/copies.h"

#include <cstring>

#include "kernels/cuda/emulation/emulator.h"

namespace halfnote::emulation {

void CopiesAhead::set_off(void* shared, const void* global, const std::source_location& place) {
  const auto addresses = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
  if (addresses % kBytes != 0) broken_kernel("a copy ahead that is not aligned", place);
  Copy copy{group_, static_cast<std::byte*>(shared), static_cast<const std::byte*>(global), {}};
  std::memcpy(copy.bytes, global, kBytes);
  std::memset(shared, 0xff, kBytes);
  pending_.push_back(copy);
}

void CopiesAhead::wait(uint64_t groups, const std::source_location& place) {
  auto next = pending_.begin();
  for (; next != pending_.end() && next->group + groups < group_; ++next) {
    if (std::memcmp(next->from, next->bytes, kBytes) != 0) {
      broken_kernel("the source of a copy ahead is written before the copy arrives", place);
    }
    std::memcpy(next->to, next->bytes, kBytes);
  }
  pending_.erase(pending_.begin(), next);
}

void CopiesAhead::drop() {
  pending_.clear();
  group_ = 0;
}

}  // namespace halfnote::emulation
