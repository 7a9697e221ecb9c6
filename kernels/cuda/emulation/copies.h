// Copies to shared memory that a thread of the emulation has set off: on a GPU they arrive at any
// time until the thread waits for them (cp.async), here at the last moment, when it waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <vector>

namespace halfnote::emulation {

/// What one thread has set off and not waited for. Groups are counted as on the hardware: one that
/// nothing was set off in counts too.
class CopiesAhead {
 public:
  /// 16 bytes; until they arrive the target is rubbish (NaN in every float type).
  void set_off(void* shared, const void* global, const std::source_location& place);
  void end_group() { ++group_; }
  /// Lets all but the last `groups` of the ended groups arrive. Throws the Error of a kernel that
  /// breaks a rule where a source was written meanwhile.
  void wait(uint64_t groups, const std::source_location& place);
  /// The thread has ended: its targets may be another block's by now.
  void drop();

 private:
  static constexpr size_t kBytes = 16;
  struct Copy {
    uint64_t group = 0;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::byte bytes[kBytes];  // as they were when it was set off
  };
  std::vector<Copy> pending_;
  uint64_t group_ = 0;  // that is set off now
};

}  // namespace halfnote::emulation
