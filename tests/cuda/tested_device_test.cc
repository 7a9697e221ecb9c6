// What kernels/device.h promises of every device, on the one under test: emulated, or the GPU that
// HALFNOTE_TEST_DEVICE names.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote::test {
namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

/// y = max(x, 0) of kCount floats, as a kernel of the device.
class Relu {
 public:
  explicit Relu(const Device& device) {
    KernelCall call;
    call.op = "Relu";
    call.attributes = &attributes_;
    call.inputs = call.outputs = {{DType::kF32, {static_cast<int64_t>(kCount)}, {}, nullptr}};
    kernel_ = device.kernels().choose(call).kernel;
    EXPECT_TRUE(kernel_);
  }
  void run(Stream& stream, const std::byte* x, std::byte* y) const {
    DeviceBuffers buffers;
    const std::vector<const std::byte*> from = {x};
    const std::vector<std::byte*> to = {y};
    buffers.inputs = from;
    buffers.outputs = to;
    buffers.stream = &stream;
    kernel_->run(buffers);
  }

 private:
  Attributes attributes_;
  decltype(std::declval<KernelChoice>().kernel) kernel_;
};

/// Numbers from -500 on, or what Relu makes of them.
std::vector<float> ramp(float least) {
  std::vector<float> x(kCount);
  for (size_t i = 0; i < kCount; ++i) x[i] = std::max(static_cast<float>(i) - 500, least);
  return x;
}

TEST(TestedDevice, SaysWhatItIs) {
  const auto device = open_tested_device();
  EXPECT_TRUE(device->name().starts_with("cuda"));
  EXPECT_NE(device->description(), "");
  RecordProperty("device", device->description());
}

TEST(TestedDevice, MemoryIsAligned) {
  const auto device = open_tested_device();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}}) {
    const auto memory = device->allocate(bytes),
               pinned = device->allocate(bytes, MemoryKind::kPinned);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 256, 0u);
    EXPECT_NE(pinned, nullptr);
  }
}

TEST(TestedDevice, CapturedStepIsReplayed) {
  const auto device = open_tested_device();
  const auto stream = device->make_stream();
  const auto from = device->allocate(kBytes, MemoryKind::kPinned);
  const auto to = device->allocate(kBytes, MemoryKind::kPinned);
  const auto x = device->allocate(kBytes), y = device->allocate(kBytes);
  const Relu relu(*device);
  stream->begin_capture();
  stream->copy(x.get(), from.get(), kBytes);
  relu.run(*stream, x.get(), y.get());
  stream->copy(to.get(), y.get(), kBytes);
  const auto graph = stream->end_capture();
  const DeviceCounters before = device->counters();
  for (const float sign : {1.0f, -1.0f, 2.0f}) {
    std::vector<float> values = ramp(-500);
    for (float& value : values) value *= sign;
    std::memcpy(from.get(), values.data(), kBytes);
    stream->launch(*graph);
    stream->synchronise();
    for (float& value : values) value = std::max(value, 0.0f);
    EXPECT_EQ(std::memcmp(to.get(), values.data(), kBytes), 0) << "times " << sign;
  }
  const DeviceCounters after = device->counters();
  EXPECT_EQ(after.graph_launches, before.graph_launches + 3);
  EXPECT_EQ(after.launches, before.launches);
  EXPECT_EQ(after.allocations, before.allocations);
}

TEST(TestedDevice, AnEventOrdersTwoStreams) {
  const auto device = open_tested_device();
  const auto first = device->make_stream(), second = device->make_stream();
  const auto event = device->make_event();
  const auto x = device->allocate(kBytes), y = device->allocate(kBytes);
  const Relu relu(*device);
  const std::vector<float> values = ramp(-500);
  for (int round = 0; round < 20; ++round) {
    first->fill(x.get(), 0, kBytes);
    first->copy(x.get(), values.data(), kBytes);
    first->record(*event);
    second->wait(*event);
    relu.run(*second, x.get(), y.get());
    std::vector<float> got(kCount, -1);
    second->copy(got.data(), y.get(), kBytes);
    second->synchronise();
    ASSERT_EQ(got, ramp(0)) << "round " << round;
  }
  first->synchronise();
}

TEST(TestedDevice, OutOfMemorySaysHowMuchIsFreeAndGoesOn) {
  const auto device = open_tested_device();
  try {
    device->allocate(size_t{1} << 50);
    FAIL() << "allocated a petabyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_NE(error.value().find("bytes free"), std::string::npos) << error.what();
    EXPECT_NE(error.hint_text(), "");
  }
  const auto stream = device->make_stream();
  const auto x = device->allocate(kBytes);
  Relu(*device).run(*stream, x.get(), x.get());
  EXPECT_NO_THROW(stream->synchronise());
}

}  // namespace
}  // namespace halfnote::test
