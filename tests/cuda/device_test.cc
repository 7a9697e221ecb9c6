// Streams, events, memory and graphs of the emulated device; how devices are named and refused.
#include "kernels/device.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/launch.h"

namespace halfnote::cuda_emulated {
namespace {

__global__ void add_one(int* x) { x[threadIdx.x] += 1; }

TEST(EmulatedDevice, NothingRunsBeforeSomebodyWaits) {
  EmulatedDevice device;
  const auto stream = device.make_stream();
  std::vector<int> x(8, 0);
  launch(*stream, add_one, 1, 8, 0, x.data());
  EXPECT_EQ(x, std::vector<int>(8, 0));
  stream->synchronise();
  EXPECT_EQ(x, std::vector<int>(8, 1));
}

TEST(EmulatedDevice, GraphIsReplayed) {
  EmulatedDevice device;
  const auto stream = device.make_stream();
  const auto from = device.allocate(32, MemoryKind::kPinned), to = device.allocate(32);
  auto* x = reinterpret_cast<int*>(from.get());
  auto* y = reinterpret_cast<int*>(to.get());
  std::iota(x, x + 8, 0);
  stream->begin_capture();
  stream->copy(y, x, 32);
  launch(*stream, add_one, 1, 8, 0, y);
  const auto graph = stream->end_capture();
  stream->synchronise();
  EXPECT_EQ(y[0], -1) << "a capture runs nothing, and fresh memory is rubbish";
  const DeviceCounters before = device.counters();
  for (int round = 0; round < 3; ++round) {
    x[7] = round;
    stream->launch(*graph);
    stream->synchronise();
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[7], round + 1);
  }
  EXPECT_EQ(device.counters().graph_launches, before.graph_launches + 3);
  EXPECT_EQ(device.counters().launches, before.launches);
  EXPECT_EQ(device.counters().copies, before.copies);
  EXPECT_EQ(device.counters().allocations, before.allocations);
}

TEST(EmulatedDevice, StreamsWaitForEventsOnly) {
  EmulatedDevice device;
  const auto first = device.make_stream(), second = device.make_stream();
  const auto event = device.make_event(EventKind::kPlain);
  std::vector<int> order;
  auto& one = static_cast<EmulatedStream&>(*first);
  auto& two = static_cast<EmulatedStream&>(*second);
  for (int i = 0; i < 10; ++i) one.enqueue([&, i] { order.push_back(i); });
  first->record(*event);
  second->wait(*event);
  two.enqueue([&] { order.push_back(100); });
  second->synchronise();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100}));
}

TEST(EmulatedDevice, MisuseIsAnError) {
  EmulatedDevice device;
  const auto stream = device.make_stream(), other = device.make_stream();
  const auto event = device.make_event(EventKind::kPlain);
  stream->begin_capture();
  EXPECT_THROW(stream->synchronise(), Error);
  EXPECT_THROW(stream->begin_capture(), Error);
  EXPECT_NE(stream->end_capture(), nullptr);
  EXPECT_THROW(stream->end_capture(), Error);
  // An event recorded in the stream that waits for another one, and the other way round.
  const auto late = device.make_event(EventKind::kPlain);
  auto& one = static_cast<EmulatedStream&>(*stream);
  one.enqueue([] { throw Error(ErrorCode::kInternal, "bad kernel"); });
  one.enqueue([] { FAIL() << "runs after an error"; });
  EXPECT_THROW(stream->synchronise(), Error);
  stream->synchronise();
}

TEST(EmulatedDevice, OutOfMemorySaysHowMuchIsFree) {
  EmulatedDevice device(1 << 20);
  const auto first = device.allocate(1 << 19);
  try {
    device.allocate(1 << 20);
    FAIL() << "allocated more than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_EQ(error.value(), "524288 bytes free");
  }
  EXPECT_NE(device.allocate(1 << 19), nullptr) << "what was refused was not taken";
}

/// It is the host's, so nothing is said of the GPU's.
TEST(EmulatedDevice, OutOfPinnedMemorySaysWhatWasAskedFor) {
  EmulatedDevice device;
  try {
    device.allocate(SIZE_MAX, MemoryKind::kPinned);
    FAIL() << "allocated more than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_EQ(error.problem(), "out of pinned (page-locked) memory of the host");
    EXPECT_EQ(error.expectation(), std::to_string(SIZE_MAX) + " bytes");
    EXPECT_NE(error.hint_text().find("container"), std::string::npos);
    EXPECT_EQ(std::string(error.what()).find("GPU"), std::string::npos);
  }
}

TEST(OpenDevice, KnowsItsNames) {
  EXPECT_EQ(open_device("cpu"), nullptr);
  EXPECT_EQ(open_device("cuda-emulated")->name(), "cuda-emulated");
  for (const auto* name : {"cudo", "gpu", "cuda-emulate", "cuda:", "cuda:x", "cuda:-1", ""}) {
    try {
      open_device(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage) << name;
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
