#include "runtime/core/borrowed_space.h"

#include <algorithm>
#include <cassert>

#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

/// Each search walks over all stretches: for small buffers the arena is as good.
constexpr size_t kLeast = size_t{1} << 16;

}  // namespace

std::vector<FreeStretch> find_free_stretches(const Graph& graph, const StateStore& store,
                                             const std::vector<std::vector<ValueId>>& writes,
                                             const std::function<int(ValueId)>& last_use) {
  std::map<ValueId, int> written;
  for (size_t i = 0; i < writes.size(); ++i) {
    for (const ValueId output : writes[i]) {
      if (output.valid()) written[output] = static_cast<int>(i);
    }
  }
  std::vector<FreeStretch> stretches;
  for (const State& state : graph.states()) {
    const StateEntry* entry = store.find(graph.value(state.current).name);
    const auto writer = written.find(state.next);
    if (entry == nullptr || entry->copy_of.empty() || writer == written.end()) continue;
    // The zeros behind a copy stay, to the byte.
    const size_t free = entry->room == 0 ? entry->bytes : align_down(entry->bytes);
    stretches.push_back({entry->offset, free, last_use(state.current), writer->second});
  }
  return stretches;
}

BorrowedSpace::BorrowedSpace(std::vector<FreeStretch> stretches)
    : stretches_(std::move(stretches)) {
  std::ranges::sort(stretches_, {}, &FreeStretch::offset);
}

std::vector<BorrowedSpace::Room> BorrowedSpace::rooms(int first, int last) const {
  std::vector<Room> found;
  for (const FreeStretch& stretch : stretches_) {
    if (stretch.last_read >= first || stretch.next_write <= last) continue;
    const size_t bytes = align_up(stretch.bytes);
    if (!found.empty() && found.back().offset + found.back().bytes == stretch.offset) {
      found.back().bytes += bytes;
    } else {
      found.push_back({stretch.offset, bytes});
    }
  }
  return found;
}

std::optional<BorrowedSpace::Room> BorrowedSpace::best_gap(const Room& room, size_t bytes) const {
  std::optional<Room> best;
  const auto offer = [&](size_t from, size_t to) {
    if (to < from + bytes || (best && best->bytes <= to - from)) return;
    best = Room{from, to - from};
  };
  size_t from = room.offset;
  const size_t end = room.offset + room.bytes;
  auto block = used_.lower_bound(room.offset);
  if (block != used_.begin()) {
    const auto before = std::prev(block);
    from = std::max(from, before->first + before->second);
  }
  for (; block != used_.end() && block->first < end; ++block) {
    offer(from, block->first);
    from = block->first + block->second;
  }
  offer(from, end);
  return best;
}

std::optional<size_t> BorrowedSpace::allocate(size_t bytes, int first, int last) {
  if (bytes < kLeast || stretches_.empty()) return std::nullopt;
  const size_t size = align_up(bytes);
  std::optional<Room> best;
  for (const Room& room : rooms(first, last)) {
    const std::optional<Room> gap = best_gap(room, size);
    if (gap && (!best || gap->bytes < best->bytes)) best = gap;
  }
  if (!best) return std::nullopt;
  used_[best->offset] = size;
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  return best->offset;
}

bool BorrowedSpace::lasts(size_t offset, int last) const {
  const auto block = used_.find(offset);
  assert(block != used_.end());
  const size_t end = offset + block->second;
  return std::ranges::none_of(stretches_, [&](const FreeStretch& stretch) {
    const bool under = stretch.offset < end && offset < stretch.offset + align_up(stretch.bytes);
    return under && stretch.next_write <= last;
  });
}

void BorrowedSpace::release(size_t offset) {
  const auto block = used_.find(offset);
  assert(block != used_.end());
  in_use_ -= block->second;
  used_.erase(block);
}

}  // namespace halfnote
