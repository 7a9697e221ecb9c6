// The arena of all programs of a session on a device, which run one after the other in one stream:
// as large as the largest needs it (shared_arena.h is the CPU's).
//
// A captured program has the arena's address in it: where the memory moves, because a larger
// program came, the others are captured again before they next run.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/device.h"

namespace halfnote {

class DeviceArena {
 public:
  /// Whoever has results in the arena that may be read after its run.
  class User {
   public:
    /// The first bytes are about to be overwritten by what goes into the stream from now on: what
    /// lies there and is still to be read has to leave, by copies in that stream.
    virtual void leave_arena(size_t bytes) = 0;

   protected:
    ~User() = default;
  };

  void add(User& user) { users_.push_back(&user); }
  /// The user is gone, with its results.
  void forget(const User& user);

  /// Makes it at least `bytes` large. If the memory moves, all users leave, and `stream`, in which
  /// their programs run, is waited for. Throws Error(kMemory) if the device has no room; the arena
  /// is empty then.
  void reserve(Device& device, Stream& stream, size_t bytes);
  /// From now on `user` writes the first `bytes`, which are there: the others are told to leave.
  void enter(const User& user, size_t bytes);
  /// Null before the first reserve().
  std::byte* base() const { return memory_.get(); }

 private:
  Device::Memory memory_;
  size_t bytes_ = 0;
  std::vector<User*> users_;
};

}  // namespace halfnote
