// The space of copies that a program borrows: what is free when, neighbours as one room, best fit.
#include "runtime/core/borrowed_space.h"

#include <gtest/gtest.h>

namespace halfnote::test {
namespace {

constexpr size_t kStretch = size_t{1} << 16;

/// Four neighbours and, after a gap, one more; the last ones are read last and written first.
BorrowedSpace five_stretches() {
  return BorrowedSpace({{0 * kStretch, kStretch, 40, 90},
                        {1 * kStretch, kStretch, 30, 92},
                        {2 * kStretch, kStretch, 20, 94},
                        {3 * kStretch, kStretch, 10, 96},
                        {8 * kStretch, 2 * kStretch, 10, 98}});
}

TEST(BorrowedSpace, IsFreeBetweenTheLastReadingAndTheWriting) {
  for (const auto& [first, last, fits] :
       {std::tuple(10, 50, false), {11, 97, true}, {11, 98, false}, {11, 50, true}}) {
    BorrowedSpace room = five_stretches();
    EXPECT_EQ(room.allocate(2 * kStretch, first, last).has_value(), fits)
        << first << " to " << last;
  }
}

TEST(BorrowedSpace, JoinsNeighboursThatAreFreeForAsLong) {
  BorrowedSpace room = five_stretches();
  EXPECT_EQ(room.allocate(3 * kStretch, 25, 60), std::nullopt) << "the second is still read";
  EXPECT_EQ(room.allocate(3 * kStretch, 31, 91), size_t{1 * kStretch});
  EXPECT_EQ(room.allocate(2 * kStretch, 31, 91), size_t{8 * kStretch});
  EXPECT_EQ(room.allocate(kStretch, 41, 89), size_t{0});
  EXPECT_EQ(room.in_use(), 6 * kStretch);
  EXPECT_EQ(room.allocate(kStretch, 41, 89), std::nullopt) << "all is taken";
}

TEST(BorrowedSpace, TakesTheSmallestRoomAndGivesItBack) {
  BorrowedSpace room = five_stretches();
  const auto first = room.allocate(kStretch, 11, 50);
  EXPECT_EQ(first, size_t{3 * kStretch}) << "not out of the room of two";
  room.release(*first);
  EXPECT_EQ(room.allocate(kStretch, 11, 50), first);
  const auto second = room.allocate(kStretch, 11, 97);
  EXPECT_EQ(second, size_t{8 * kStretch});
  EXPECT_EQ(room.allocate(kStretch, 11, 97), size_t{9 * kStretch});
  room.release(*second);
  EXPECT_EQ(room.allocate(2 * kStretch, 11, 97), std::nullopt) << "one half is taken";
  EXPECT_EQ(room.peak(), 3 * kStretch);
}

TEST(BorrowedSpace, SaysHowLongABlockMayStay) {
  BorrowedSpace room = five_stretches();
  const auto block = room.allocate(2 * kStretch, 21, 60);
  ASSERT_EQ(block, size_t{2 * kStretch});
  EXPECT_TRUE(room.lasts(*block, 93));
  EXPECT_FALSE(room.lasts(*block, 94));
}

TEST(BorrowedSpace, LeavesSmallBuffersToTheArena) {
  BorrowedSpace room = five_stretches();
  EXPECT_EQ(room.allocate(kStretch - 1, 11, 50), std::nullopt);
  EXPECT_EQ(BorrowedSpace().allocate(kStretch, 11, 50), std::nullopt);
}

}  // namespace
}  // namespace halfnote::test
