// Placing blocks whose times are known: what is needed at one time never overlaps, in any order,
// and the best order is no worse than any.
#include "runtime/core/memory/placement.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/core/memory/best_fit.h"

namespace halfnote::test {
namespace {

/// Blocks as steps make them: each event allocates one or releases one.
std::vector<ArenaBlock> random_blocks(uint32_t seed, int events) {
  std::mt19937 random(seed);
  std::vector<ArenaBlock> blocks;
  std::vector<size_t> live;
  for (int event = 0; event < events; ++event) {
    if (!live.empty() && random() % 100 < 45) {
      const size_t which = random() % live.size();
      blocks[live[which]].last = event;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    live.push_back(blocks.size());
    const size_t bytes = random() % 4 == 0 ? random() % 100'000 : random() % 3000;
    blocks.push_back({std::max(align_up(bytes), kBufferAlignment), event, events});
  }
  return blocks;
}

bool meet(const ArenaBlock& a, const ArenaBlock& b) { return a.first < b.last && b.first < a.last; }

void check(const std::vector<ArenaBlock>& blocks, const Placement& placement) {
  ASSERT_EQ(placement.offsets.size(), blocks.size());
  size_t end = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t from = placement.offsets[i], to = from + blocks[i].bytes;
    EXPECT_EQ(from % kBufferAlignment, 0u);
    end = std::max(end, to);
    for (size_t k = 0; k < i; ++k) {
      const size_t other = placement.offsets[k];
      if (!meet(blocks[i], blocks[k])) continue;
      ASSERT_TRUE(to <= other || other + blocks[k].bytes <= from) << i << " lies on " << k;
    }
  }
  EXPECT_EQ(placement.bytes, end);
  EXPECT_GE(placement.bytes, live_peak(blocks));
}

TEST(Placement, WhatIsNeededAtOneTimeNeverOverlaps) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<ArenaBlock> blocks = random_blocks(seed, 300);
    size_t least = SIZE_MAX;
    for (const PlacementOrder order : kPlacementOrders) {
      const Placement placement = place(blocks, order);
      check(blocks, placement);
      least = std::min(least, placement.bytes);
    }
    const Placement best = place_best(blocks);
    check(blocks, best);
    EXPECT_LE(best.bytes, least);
    EXPECT_EQ(place_best(blocks).offsets, best.offsets) << "the same again";
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Placement, VeryManyBlocks) {
  const std::vector<ArenaBlock> blocks = random_blocks(7, 12'000);
  ASSERT_GT(blocks.size(), 4096u);
  const Placement best = place_best(blocks);
  check(blocks, best);
  EXPECT_LE(best.bytes, place(blocks, PlacementOrder::kTime).bytes);
}

TEST(Placement, TheFirstToComeNeedNotLieLowest) {
  // In the order of time the second one lies above the first, and the third finds no room below.
  const std::vector<ArenaBlock> blocks = {{64, 0, 2}, {64, 1, 4}, {128, 3, 5}};
  EXPECT_EQ(live_peak(blocks), 192u);
  EXPECT_EQ(place(blocks, PlacementOrder::kTime).bytes, 256u);
  EXPECT_EQ(place_best(blocks).bytes, 192u);
}

TEST(Placement, NoBlocks) {
  EXPECT_EQ(live_peak({}), 0u);
  EXPECT_EQ(place_best({}).bytes, 0u);
}

TEST(Placement, WhatIsReleasedIsFreeForTheNextEvent) {
  const std::vector<ArenaBlock> blocks = {{128, 0, 1}, {128, 2, 3}};
  EXPECT_EQ(live_peak(blocks), 128u);
  EXPECT_EQ(place_best(blocks).bytes, 128u);
}

}  // namespace
}  // namespace halfnote::test
