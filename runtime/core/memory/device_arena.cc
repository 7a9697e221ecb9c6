#include "runtime/core/memory/device_arena.h"

#include <algorithm>

namespace halfnote {

void DeviceArena::forget(const User& user) { std::erase(users_, &user); }

void DeviceArena::reserve(Device& device, Stream& stream, size_t bytes) {
  if (bytes <= bytes_) return;
  for (User* user : users_) user->leave_arena(bytes_);
  stream.synchronise();
  memory_.reset();  // first, or both would be there at one time
  bytes_ = 0;
  memory_ = device.allocate(bytes);
  bytes_ = bytes;
}

void DeviceArena::enter(const User& user, size_t bytes) {
  for (User* other : users_) {
    if (other != &user) other->leave_arena(bytes);
  }
}

}  // namespace halfnote
