// One arena for several programs: who leaves it, and when.
#include "runtime/core/memory/shared_arena.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace halfnote::test {
namespace {

struct User final : ArenaUser {
  void leave_arena() override { ++left; }
  int left = 0;
};

TEST(SharedArena, IsAsLargeAsTheLargestNeedsIt) {
  const size_t before = held_page_bytes();
  SharedArena arena;
  EXPECT_EQ(arena.base(), nullptr);
  arena.reserve(1 << 20);
  std::byte* const base = arena.base();
  ASSERT_NE(base, nullptr);
  arena.reserve(1000);
  EXPECT_EQ(arena.base(), base) << "there is room";
  EXPECT_EQ(held_page_bytes() - before, size_t{1} << 20);
  arena.reserve(8 << 20);
  EXPECT_EQ(held_page_bytes() - before, size_t{8} << 20) << "the old one is gone";
}

TEST(SharedArena, AnEmptyArenaIsThere) {
  SharedArena arena;
  arena.reserve(0);
  EXPECT_NE(arena.base(), nullptr);
}

TEST(SharedArena, WhoeverIsOverwrittenIsTold) {
  SharedArena arena;
  User a, b;
  arena.enter(a);
  arena.enter(a);
  EXPECT_EQ(a.left, 0) << "its own results go as they always did";
  arena.enter(b);
  EXPECT_EQ(a.left, 1);
  arena.enter(a);
  EXPECT_EQ(b.left, 1);
  arena.forget(a);
  arena.enter(b);
  EXPECT_EQ(a.left, 1) << "it is gone";
}

TEST(SharedArena, WhoeverLiesThereWhenItMovesIsTold) {
  SharedArena arena;
  User a;
  arena.reserve(1 << 20);
  arena.enter(a);
  arena.reserve(2 << 20);
  EXPECT_EQ(a.left, 1);
}

TEST(SharedArena, GivesItsMemoryBackAndTakesItAgain) {
  const size_t before = held_page_bytes();
  SharedArena arena;
  User a;
  arena.reserve(1 << 20);
  arena.enter(a);
  arena.release();
  EXPECT_EQ(a.left, 1) << "its results went with it";
  EXPECT_EQ(arena.base(), nullptr);
  EXPECT_EQ(held_page_bytes(), before);
  arena.release();
  arena.reserve(1000);
  EXPECT_NE(arena.base(), nullptr);
}

TEST(SharedArena, NoMemoryIsAnError) {
  SharedArena arena;
  try {
    arena.reserve(SIZE_MAX / 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
  }
}

}  // namespace
}  // namespace halfnote::test
