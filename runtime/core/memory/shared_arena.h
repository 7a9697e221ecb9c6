// The arena of several programs that never run at one time: it is as large as the largest needs it.
#pragma once

#include <cstddef>

#include "runtime/core/pages.h"

namespace halfnote {

/// Whoever has results in the arena that are read after its run.
class ArenaUser {
 public:
  /// Another is about to overwrite the arena, or it goes: what is still to be read has to leave.
  virtual void leave_arena() = 0;

 protected:
  ~ArenaUser() = default;
};

class SharedArena {
 public:
  /// Makes it at least `bytes` large; the memory may move. Throws Error(kMemory) if there is none.
  void reserve(size_t bytes);
  /// Gives the memory back, until somebody reserves it again.
  void release();
  /// Null before the first reserve(), and after release().
  std::byte* base() const { return memory_.get(); }
  /// From now on `user` writes it; the one before is told to leave.
  void enter(ArenaUser& user);
  /// The user is gone, with its results.
  void forget(const ArenaUser& user);

 private:
  Pages memory_;
  size_t bytes_ = 0;
  ArenaUser* user_ = nullptr;
};

}  // namespace halfnote
