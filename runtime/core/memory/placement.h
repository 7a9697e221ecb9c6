// Offsets of buffers in one arena, when all of them and their times are known.
//
// No order of placing them is the best for every model, so several are tried and the smallest arena
// is taken (bench/results/2026-11-22-memory.md). All of it is a function of the blocks alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace halfnote {

/// A buffer of the arena: `bytes`, a multiple of kBufferAlignment, from event `first` up to, but
/// not with, event `last`. No two of them are allocated or released by the same event.
struct ArenaBlock {
  size_t bytes = 0;
  int first = 0, last = 0;
};

struct Placement {
  std::vector<size_t> offsets;  // by block
  size_t bytes = 0;             // of the arena
};

/// In which order blocks get their place.
enum class PlacementOrder : uint8_t {
  kTime,    // as they are allocated, best fit: O(n log n)
  kSize,    // the large ones first, each in the lowest gap of its time: O(n²), as all that follow
  kVolume,  // those first whose bytes times their time are most
  kLength,  // those first that live longest
};
std::string_view name_of(PlacementOrder order);
inline constexpr PlacementOrder kPlacementOrders[] = {
    PlacementOrder::kTime, PlacementOrder::kSize, PlacementOrder::kVolume, PlacementOrder::kLength};

/// The most bytes that are needed at one time: no arena is smaller.
size_t live_peak(std::span<const ArenaBlock> blocks);

/// One order, for measurements.
Placement place(std::span<const ArenaBlock> blocks, PlacementOrder order);

/// The smallest arena of all orders, each improved by moving what lies highest to the front. Work
/// is bounded: of very many blocks only the largest take part, the rest lies behind them in the
/// order of time.
Placement place_best(std::span<const ArenaBlock> blocks);

}  // namespace halfnote
