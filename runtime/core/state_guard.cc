#include "runtime/core/state_guard.h"

#include <algorithm>
#include <cstring>

namespace halfnote {
namespace {

/// What a run copies at its start: nothing beside the step of the smallest model.
constexpr size_t kMostGuarded = size_t{16} << 10;

/// Bytes of the state or copy that begins at an offset of the store, whose entries are in the order
/// of their offsets; 0 if none does.
size_t bytes_at(const StateStore& store, size_t offset) {
  for (const auto entries : {store.entries(), store.copies()}) {
    const auto next = std::ranges::upper_bound(entries, offset, {}, &StateEntry::offset);
    if (next == entries.begin()) continue;
    if (const StateEntry& entry = *std::prev(next); entry.offset == offset) return entry.bytes;
  }
  return 0;
}

}  // namespace

StateGuard::StateGuard(const Program& program, const StateStore& store) {
  size_t total = 0;
  for (; unguarded_ < program.steps.size(); ++unguarded_) {
    for (const BufferRef& output : program.steps[unguarded_].outputs) {
      if (output.space != BufferRef::Space::kState) continue;
      const bool known = std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
        return range.offset == output.offset;
      });
      if (known) continue;
      const size_t bytes = bytes_at(store, output.offset);
      if (bytes == 0 || total + bytes > kMostGuarded) {
        saved_.resize(total);
        return;
      }
      ranges_.push_back({output.offset, bytes});
      total += bytes;
    }
  }
  saved_.resize(total);
}

void StateGuard::save(const std::byte* base) {
  std::byte* to = saved_.data();
  for (const Range& range : ranges_) {
    std::memcpy(to, base + range.offset, range.bytes);
    to += range.bytes;
  }
}

bool StateGuard::restore(std::byte* base, size_t broken) const {
  if (broken >= unguarded_) return false;
  const std::byte* from = saved_.data();
  for (const Range& range : ranges_) {
    std::memcpy(base + range.offset, from, range.bytes);
    from += range.bytes;
  }
  return true;
}

}  // namespace halfnote
