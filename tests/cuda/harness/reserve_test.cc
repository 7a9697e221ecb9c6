// The memory that calls on a GPU share, on the device under test.
#include "tests/cuda/harness/reserve.h"

#include <gtest/gtest.h>

#include "tests/cuda/harness/device_check.h"

namespace halfnote::test {
namespace {

TEST(TestedDevice, AReserveHandsOutTheSameMemoryAgain) {
  const auto device = open_tested_device();
  const auto stream = device->make_stream();
  Reserve reserve(*device, *stream);
  std::byte* const first = reserve.take(100, 0);
  std::byte* const second = reserve.take(100, 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 256, 2u);
  EXPECT_GE(second - first, static_cast<std::ptrdiff_t>(100 + Reserve::kGuard));
  std::byte* const large = reserve.take(Reserve::kBlock + 1, 0);
  stream->fill(first, 1, 100);
  stream->fill(second, 2, 100);
  stream->fill(large, 3, Reserve::kBlock + 1);
  EXPECT_EQ(reserve.free_all(), 0u);
  const auto before = device->counters().allocations;
  EXPECT_EQ(reserve.take(100, 0), first);
  EXPECT_EQ(reserve.take(Reserve::kBlock, 0), large);
  EXPECT_EQ(device->counters().allocations, before);
  EXPECT_EQ(reserve.free_all(), 0u);
}

TEST(TestedDevice, AReserveSeesWhoWritesOverAnEnd) {
  const auto device = open_tested_device();
  const auto stream = device->make_stream();
  Reserve reserve(*device, *stream);
  std::byte* const first = reserve.take(100, 0);
  reserve.take(0, 0);
  stream->fill(first, 0, 101);
  EXPECT_EQ(reserve.free_all(), 1u);
  EXPECT_EQ(reserve.free_all(), 0u);
}

}  // namespace
}  // namespace halfnote::test
