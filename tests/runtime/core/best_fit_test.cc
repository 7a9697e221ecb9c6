// BestFit as a property: whatever is allocated and released in whatever order, live blocks never
// overlap and the sums hold.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "runtime/core/memory/best_fit.h"

namespace halfnote::test {
namespace {

/// What should be in use: offset -> size, kept by the test.
class PlanModel {
 public:
  void allocate(BestFit& plan, size_t bytes) {
    const size_t size = std::max(align_up(bytes), kBufferAlignment);
    const size_t offset = plan.allocate(bytes);
    EXPECT_EQ(offset % kBufferAlignment, 0u);
    const auto after = live_.lower_bound(offset);
    if (after != live_.end()) {
      EXPECT_LE(offset + size, after->first) << "overlaps the next block";
    }
    if (after != live_.begin()) {
      const auto before = std::prev(after);
      EXPECT_LE(before->first + before->second, offset) << "overlaps the block before";
    }
    live_[offset] = size;
    sum_ += size;
    most_ = std::max(most_, sum_);
    check(plan);
    EXPECT_LE(offset + size, plan.peak());
  }

  void release(BestFit& plan, size_t which) {
    const auto block = std::next(live_.begin(), static_cast<std::ptrdiff_t>(which % live_.size()));
    plan.release(block->first);
    sum_ -= block->second;
    live_.erase(block);
    check(plan);
  }

  size_t count() const { return live_.size(); }

 private:
  void check(const BestFit& plan) const {
    EXPECT_EQ(plan.in_use(), sum_);
    EXPECT_GE(plan.peak(), most_);
  }

  std::map<size_t, size_t> live_;
  size_t sum_ = 0, most_ = 0;
};

TEST(BestFit, LiveBlocksNeverOverlap) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    BestFit plan;
    PlanModel model;
    for (int i = 0; i < 400; ++i) {
      const bool release = model.count() > 0 && random() % 100 < 45;
      if (release) {
        model.release(plan, random());
      } else {
        model.allocate(plan, random() % 4 == 0 ? random() % 65 : random() % 5000);
      }
      if (HasFailure()) FAIL() << "seed " << seed << " step " << i;
    }
    const size_t peak = plan.peak();
    while (model.count() > 0) model.release(plan, random());
    // All free blocks have merged into one, which takes a block as large as the arena.
    EXPECT_EQ(plan.in_use(), 0u);
    EXPECT_EQ(plan.allocate(peak), 0u);
    EXPECT_EQ(plan.peak(), peak);
  }
}

TEST(BestFit, NeighboursMergeInEveryOrder) {
  const size_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    BestFit plan;
    const size_t blocks[] = {plan.allocate(64), plan.allocate(128), plan.allocate(192)};
    const size_t guard = plan.allocate(64);
    for (size_t which : order) plan.release(blocks[which]);
    EXPECT_EQ(plan.allocate(384), 0u) << "the three are one block";
    EXPECT_EQ(plan.peak(), guard + 64);
  }
}

TEST(BestFit, TakesTheSmallestBlockThatFits) {
  BestFit plan;
  const size_t large = plan.allocate(1024);
  plan.allocate(64);
  const size_t small = plan.allocate(128);
  plan.allocate(64);
  plan.release(large);
  plan.release(small);
  EXPECT_EQ(plan.allocate(100), small);
  EXPECT_EQ(plan.allocate(100), large) << "the rest of the small one is used up";
}

TEST(BestFit, GrowsOverAFreeBlockAtTheEnd) {
  BestFit plan;
  plan.allocate(64);
  const size_t last = plan.allocate(128);
  plan.release(last);
  EXPECT_EQ(plan.allocate(256), last);
  EXPECT_EQ(plan.peak(), 64u + 256u);
}

TEST(BestFit, EmptyBlocksHaveAPlaceOfTheirOwn) {
  BestFit plan;
  EXPECT_NE(plan.allocate(0), plan.allocate(0));
}

}  // namespace
}  // namespace halfnote::test
