#include "runtime/core/memory/shared_arena.h"

#include <string>

#include "base/error.h"

namespace halfnote {

void SharedArena::reserve(size_t bytes) {
  if (memory_ && bytes <= bytes_) return;
  release();  // first, or both would be there at one time
  memory_ = allocate_pages(bytes);
  if (!memory_) {
    throw Error(ErrorCode::kMemory, "no memory for the step's arena")
        .expected(std::to_string(bytes) + " bytes", "an allocation failure");
  }
  bytes_ = bytes;
}

void SharedArena::release() {
  if (user_ != nullptr) user_->leave_arena();
  user_ = nullptr;
  memory_.reset();
  bytes_ = 0;
}

void SharedArena::enter(ArenaUser& user) {
  if (user_ == &user) return;
  if (user_ != nullptr) user_->leave_arena();
  user_ = &user;
}

void SharedArena::forget(const ArenaUser& user) {
  if (user_ == &user) user_ = nullptr;
}

}  // namespace halfnote
