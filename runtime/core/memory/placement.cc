#include "runtime/core/memory/placement.h"

#include <algorithm>
#include <numeric>

#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

/// Blocks that are placed in other orders than that of time; the time for these is quadratic.
constexpr size_t kMostSorted = 2048;
/// Looks at placed blocks that improving one order may take (some 10 ms), and how often in a row it
/// may be in vain.
constexpr int64_t kMostLooks = 4'000'000;
constexpr int kMostInVain = 300;
/// Of very many blocks: an arena that is larger than the least possible by this part is good.
constexpr size_t kGoodEnough = 512;

using Sequence = std::vector<size_t>;  // of blocks

Sequence by_time(std::span<const ArenaBlock> blocks) {
  Sequence sequence(blocks.size());
  std::iota(sequence.begin(), sequence.end(), size_t{0});
  std::ranges::stable_sort(sequence, {}, [&](size_t i) { return blocks[i].first; });
  return sequence;
}

Placement place_by_time(std::span<const ArenaBlock> blocks) {
  Placement result{std::vector<size_t>(blocks.size()), 0};
  Sequence ends = by_time(blocks);
  const Sequence begins = ends;
  std::ranges::stable_sort(ends, {}, [&](size_t i) { return blocks[i].last; });
  BestFit fit;
  auto end = ends.begin();
  for (const size_t i : begins) {
    for (; blocks[*end].last <= blocks[i].first; ++end) fit.release(result.offsets[*end]);
    result.offsets[i] = fit.allocate(blocks[i].bytes);
  }
  result.bytes = fit.peak();
  return result;
}

Sequence sequence_of(std::span<const ArenaBlock> blocks, PlacementOrder order) {
  Sequence sequence = by_time(blocks);
  const auto length = [&](size_t i) {
    return static_cast<size_t>(blocks[i].last - blocks[i].first);
  };
  switch (order) {
    case PlacementOrder::kTime:
      break;
    case PlacementOrder::kSize:
      std::ranges::stable_sort(sequence, std::greater{}, [&](size_t i) { return blocks[i].bytes; });
      break;
    case PlacementOrder::kVolume:
      std::ranges::stable_sort(sequence, std::greater{},
                               [&](size_t i) { return blocks[i].bytes * length(i); });
      break;
    case PlacementOrder::kLength:
      std::ranges::stable_sort(sequence, std::greater{}, length);
      break;
  }
  return sequence;
}

/// Gives each block of a sequence the lowest gap that is free in its time.
class FirstFit {
 public:
  FirstFit(std::span<const ArenaBlock> blocks, int64_t& looks) : blocks_(blocks), looks_(looks) {}

  Placement place(const Sequence& sequence) {
    placed_.clear();
    Placement result{std::vector<size_t>(blocks_.size()), 0};
    for (const size_t i : sequence) {
      const size_t offset = lowest_gap(blocks_[i]);
      result.offsets[i] = offset;
      result.bytes = std::max(result.bytes, offset + blocks_[i].bytes);
      const Placed placed{offset, offset + blocks_[i].bytes, blocks_[i].first, blocks_[i].last};
      placed_.insert(std::ranges::upper_bound(placed_, offset, {}, &Placed::offset), placed);
    }
    return result;
  }

 private:
  struct Placed {
    size_t offset, end;
    int first, last;
  };

  size_t lowest_gap(const ArenaBlock& block) {
    size_t offset = 0;
    for (const Placed& other : placed_) {
      --looks_;
      if (other.last <= block.first || block.last <= other.first) continue;
      if (offset + block.bytes <= other.offset) return offset;
      offset = std::max(offset, other.end);
    }
    return offset;
  }

  std::span<const ArenaBlock> blocks_;
  int64_t& looks_;
  std::vector<Placed> placed_;  // by offset
};

/// The block that makes the arena as large as it is, the first in the sequence of several.
size_t find_highest(std::span<const ArenaBlock> blocks, const Sequence& sequence,
                    const Placement& placement) {
  for (size_t at = 0; at < sequence.size(); ++at) {
    const size_t i = sequence[at];
    if (placement.offsets[i] + blocks[i].bytes == placement.bytes) return at;
  }
  return 0;
}

/// Places in one order; what then lies highest goes to the front of it, again and again.
void improve(std::span<const ArenaBlock> blocks, Sequence sequence, size_t least, Placement& best) {
  int64_t looks = kMostLooks;
  FirstFit fit(blocks, looks);
  for (int in_vain = 0; looks > 0 && in_vain < kMostInVain && best.bytes > least; ++in_vain) {
    Placement found = fit.place(sequence);
    const size_t at = find_highest(blocks, sequence, found);
    if (found.bytes < best.bytes) {
      best = std::move(found);
      in_vain = 0;
    }
    if (at == 0) return;  // it would be the same again
    const auto begin = sequence.begin();
    std::rotate(begin, begin + static_cast<std::ptrdiff_t>(at),
                begin + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

Placement place_few(std::span<const ArenaBlock> blocks) {
  const size_t least = live_peak(blocks);
  Placement best = place_by_time(blocks);
  for (const PlacementOrder order : kPlacementOrders) {
    improve(blocks, sequence_of(blocks, order), least, best);
  }
  return best;
}

/// The largest blocks in any order, the others behind them in that of time.
Placement place_many(std::span<const ArenaBlock> blocks) {
  Sequence sequence = sequence_of(blocks, PlacementOrder::kSize);
  const auto few = sequence.begin() + kMostSorted;
  std::sort(sequence.begin(), few);
  std::sort(few, sequence.end());
  Placement result{std::vector<size_t>(blocks.size()), 0};
  const auto put = [&](auto begin, auto end, auto&& place) {
    std::vector<ArenaBlock> part;
    for (auto at = begin; at != end; ++at) part.push_back(blocks[*at]);
    const Placement placed = place(part);
    for (size_t k = 0; k < part.size(); ++k) {
      result.offsets[begin[static_cast<std::ptrdiff_t>(k)]] = result.bytes + placed.offsets[k];
    }
    result.bytes += placed.bytes;
  };
  put(sequence.begin(), few, place_few);
  put(few, sequence.end(), place_by_time);
  return result;
}

}  // namespace

std::string_view name_of(PlacementOrder order) {
  switch (order) {
    case PlacementOrder::kTime:
      return "time";
    case PlacementOrder::kSize:
      return "size";
    case PlacementOrder::kVolume:
      return "volume";
    case PlacementOrder::kLength:
      return "length";
  }
  return {};
}

size_t live_peak(std::span<const ArenaBlock> blocks) {
  std::vector<std::pair<int, int64_t>> changes;
  for (const ArenaBlock& block : blocks) {
    changes.emplace_back(block.first, static_cast<int64_t>(block.bytes));
    changes.emplace_back(block.last, -static_cast<int64_t>(block.bytes));
  }
  std::ranges::sort(changes);  // releases first
  int64_t live = 0, most = 0;
  for (const auto& [event, change] : changes) most = std::max(most, live += change);
  return static_cast<size_t>(most);
}

Placement place(std::span<const ArenaBlock> blocks, PlacementOrder order) {
  if (order == PlacementOrder::kTime) return place_by_time(blocks);
  int64_t looks = 0;
  return FirstFit(blocks, looks).place(sequence_of(blocks, order));
}

Placement place_best(std::span<const ArenaBlock> blocks) {
  if (blocks.size() <= kMostSorted) return place_few(blocks);
  Placement by_time = place_by_time(blocks);
  const size_t least = live_peak(blocks);
  if (by_time.bytes <= least + least / kGoodEnough) return by_time;
  Placement many = place_many(blocks);
  return many.bytes < by_time.bytes ? many : by_time;
}

}  // namespace halfnote
