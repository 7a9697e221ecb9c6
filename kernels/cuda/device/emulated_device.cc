#include "kernels/cuda/device/emulated_device.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/device/memory_error.h"
#include "kernels/cuda/emulation/emulator.h"
#include "kernels/cuda/emulation/guarded.h"
#include "kernels/cuda/publish.h"
#include "kernels/cuda/table.h"

namespace halfnote::cuda_emulated {

namespace {

constexpr size_t kDeviceAlignment = 256;

size_t rounded_up(size_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

Error misuse(const std::string& what) {
  return Error(ErrorCode::kInternal, "emulated device: " + what);
}

}  // namespace

class EmulatedEvent final : public DeviceEvent {
 public:
  using Clock = std::chrono::steady_clock;
  explicit EmulatedEvent(EventKind kind) : timed(kind == EventKind::kTimed) {}
  double seconds_since(const DeviceEvent& earlier) const override {
    const auto& first = static_cast<const EmulatedEvent&>(earlier);
    if (!timed || !first.timed || happened == 0 || first.happened == 0)
      throw misuse("the time of an event that has none");
    return std::chrono::duration<double>(at - first.at).count();
  }

  uint64_t recorded = 0;  // how often a stream was told to record it
  uint64_t happened = 0;  // and how often it did
  bool timed;
  Clock::time_point at;  // of the last time
};

namespace {

class EmulatedGraph final : public DeviceGraph {
 public:
  explicit EmulatedGraph(std::vector<std::function<void()>> captured)
      : items(std::move(captured)) {}
  std::vector<std::function<void()>> items;
};

}  // namespace

EmulatedStream::EmulatedStream(EmulatedDevice& device) : device_(device) {
  device_.streams_.push_back(this);
}

EmulatedStream::~EmulatedStream() { std::erase(device_.streams_, this); }

void EmulatedStream::put(Item item) {
  if (capturing_) {
    captured_.push_back(std::move(item));
  } else {
    queue_.push_back(std::move(item));
  }
}

void EmulatedStream::enqueue(std::function<void()> work) { put({std::move(work)}); }

void EmulatedStream::enqueue_grid(const emulation::GridShape& shape, void (*body)(const void*),
                                  const void* arguments, size_t bytes) {
  ++device_.counters_.launches;
  std::vector<std::max_align_t> copy(bytes / sizeof(std::max_align_t) + 1);
  std::memcpy(copy.data(), arguments, bytes);
  enqueue([=, copy = std::move(copy)] {
    emulation::run_grid(shape, emulation::emulation_seed(), body, copy.data());
  });
}

void EmulatedStream::copy(void* to, const void* from, size_t bytes) {
  ++device_.counters_.copies;
  if (bytes > 0) enqueue([=] { std::memmove(to, from, bytes); });
}

void EmulatedStream::fill(void* to, uint8_t value, size_t bytes) {
  if (bytes > 0) enqueue([=] { std::memset(to, value, bytes); });
}

void EmulatedStream::copy_blocks(const BlockCopy& copy) { cuda_emulated::copy_blocks(*this, copy); }

void EmulatedStream::copy_if(const DeviceCondition& condition, void* to, const void* from,
                             size_t bytes) {
  cuda_emulated::copy_if(*this, condition, to, from, bytes);
}

void EmulatedStream::note_fault_if(const DeviceCondition& condition, const DeviceFault* noted) {
  cuda_emulated::note_fault_if(*this, condition, noted);
}

void EmulatedStream::record(DeviceEvent& event) {
  if (capturing_) throw misuse("an event is recorded while a graph is captured");
  auto& own = static_cast<EmulatedEvent&>(event);
  const uint64_t occurrence = ++own.recorded;
  enqueue([&own, occurrence] {
    own.happened = std::max(own.happened, occurrence);
    own.at = EmulatedEvent::Clock::now();
  });
}

void EmulatedStream::wait(const DeviceEvent& event) {
  if (capturing_) throw misuse("an event is awaited while a graph is captured");
  const auto& own = static_cast<const EmulatedEvent&>(event);
  put({{}, &own, own.recorded});
}

void EmulatedStream::publish(std::span<const SmallValue> values, uint64_t* mailbox) {
  cuda_emulated::publish(*this, values, mailbox);
}

void EmulatedStream::poll() {
  if (capturing_) throw misuse("the host waits for a stream that is being captured");
  device_.run_one();
}

void EmulatedStream::synchronise() {
  if (capturing_) throw misuse("the host waits for a stream that is being captured");
  ++device_.counters_.synchronisations;
  device_.run_until_done(*this);
  throw_fault(fault_);
}

void EmulatedStream::begin_capture() {
  if (capturing_) throw misuse("a graph is captured within another");
  capturing_ = true;
}

std::unique_ptr<DeviceGraph> EmulatedStream::end_capture() {
  if (!capturing_) throw misuse("no graph is being captured");
  capturing_ = false;
  std::vector<std::function<void()>> items;
  for (Item& item : captured_) items.push_back(std::move(item.work));
  captured_.clear();
  return std::make_unique<EmulatedGraph>(std::move(items));
}

void EmulatedStream::launch(const DeviceGraph& graph) {
  ++device_.counters_.graph_launches;
  for (const auto& item : static_cast<const EmulatedGraph&>(graph).items) enqueue(item);
}

const KernelTable& EmulatedDevice::kernels() const { return kernel_table(); }

const RegionLayout& EmulatedDevice::regions() const { return channels_last_regions(); }

std::unique_ptr<Stream> EmulatedDevice::make_stream() {
  return std::make_unique<EmulatedStream>(*this);
}

std::unique_ptr<DeviceEvent> EmulatedDevice::make_event(EventKind kind) {
  return std::make_unique<EmulatedEvent>(kind);
}

bool EmulatedDevice::advance(EmulatedStream& stream) {
  if (stream.queue_.empty()) return false;
  const EmulatedStream::Item& first = stream.queue_.front();
  if (first.awaited != nullptr && first.awaited->happened < first.occurrence) return false;
  const EmulatedStream::Item item = std::move(stream.queue_.front());
  stream.queue_.pop_front();
  try {
    if (item.work) item.work();
  } catch (...) {
    stream.queue_.clear();  // what followed has lost its operands
    throw;
  }
  return true;
}

void EmulatedDevice::run_until_done(EmulatedStream& stream) {
  while (!stream.queue_.empty()) run_one();
}

void EmulatedDevice::run_one() {
  random_ = random_ * 6364136223846793005u + emulation::emulation_seed() * 2 + 1;
  const size_t first = (random_ >> 33) % streams_.size();
  bool moved = false;
  for (size_t i = 0; !moved && i < streams_.size(); ++i) {
    moved = advance(*streams_[(first + i) % streams_.size()]);
  }
  if (!moved) throw misuse("the host or the streams wait for what nobody does");
}

std::byte* EmulatedDevice::acquire(size_t bytes, MemoryKind kind) {
  ++counters_.allocations;
  const size_t rounded = std::max(rounded_up(bytes), kDeviceAlignment);
  if (kind == MemoryKind::kDevice && rounded > free_bytes_) {
    throw Error(ErrorCode::kMemory, "out of memory on cuda-emulated")
        .expected(std::to_string(bytes) + " bytes", std::to_string(free_bytes_) + " bytes free")
        .hint("use a smaller batch");
  }
  emulation::Guarded memory = emulation::allocate_guarded(bytes, kDeviceAlignment);
  if (memory == nullptr) {
    if (kind == MemoryKind::kPinned) throw out_of_pinned_memory(bytes);
    throw Error(ErrorCode::kMemory, "no memory for the emulated device")
        .expected(std::to_string(bytes) + " bytes", "an allocation failure");
  }
  std::memset(memory.get(), 0xff, bytes);  // the device gives no zeros either
  if (kind == MemoryKind::kDevice) {
    free_bytes_ -= rounded;
    allocations_.emplace_back(memory.get(), rounded);
  }
  return memory.release();
}

void EmulatedDevice::release(std::byte* memory, MemoryKind) {
  const auto found = std::find_if(allocations_.begin(), allocations_.end(),
                                  [&](const auto& entry) { return entry.first == memory; });
  if (found != allocations_.end()) {
    free_bytes_ += found->second;
    allocations_.erase(found);
  }
  emulation::ReleaseGuarded()(memory);
}

}  // namespace halfnote::cuda_emulated
