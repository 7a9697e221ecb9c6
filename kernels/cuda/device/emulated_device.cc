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

  std::weak_ptr<EmulatedCapture> capture;  // in which it was recorded last, if that goes on: there
  size_t line = 0, items = 0;              // behind so many items of this line
  uint64_t recorded = 0;                   // how often a stream was told to record it
  uint64_t happened = 0;                   // and how often it did
  bool timed;
  Clock::time_point at;  // of the last time
};

/// Streams that are captured together: the first one, and those that waited for one of them. Each
/// is a line of work in its order, which waits for others here and there.
class EmulatedCapture {
 public:
  struct Item {
    std::function<void()> work;  // or, without it, a wait:
    size_t line = 0, items = 0;  // until so many items of that line are done
  };
  std::vector<std::vector<Item>> lines;
  std::vector<EmulatedStream*> streams;
};

namespace {

class EmulatedGraph final : public DeviceGraph {
 public:
  using Item = EmulatedCapture::Item;
  explicit EmulatedGraph(std::vector<std::vector<Item>> captured) : lines(std::move(captured)) {}

  /// Calls `put(work)` for all work, in an order that the lines allow: `draw(n)` chooses one of n.
  template <class Draw, class Put>
  void each(const Draw& draw, const Put& put) const {
    std::vector<size_t> done(lines.size(), 0);
    for (bool any = true; any;) {
      any = false;
      const size_t first = draw(lines.size());
      for (size_t k = 0; !any && k < lines.size(); ++k) {
        const size_t line = (first + k) % lines.size();
        if (done[line] == lines[line].size()) continue;
        const Item& item = lines[line][done[line]];
        if (!item.work && done[item.line] < item.items) continue;
        if (item.work) put(item.work);
        ++done[line];
        any = true;
      }
    }
  }

  std::vector<std::vector<Item>> lines;
};

}  // namespace

EmulatedStream::EmulatedStream(EmulatedDevice& device) : device_(device) {
  device_.streams_.push_back(this);
}

EmulatedStream::~EmulatedStream() { std::erase(device_.streams_, this); }

void EmulatedStream::put(Item item) {
  if (capture_) {
    capture_->lines[line_].push_back({std::move(item.work)});
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
  auto& own = static_cast<EmulatedEvent&>(event);
  own.capture = capture_;
  if (capture_) {
    own.line = line_;
    own.items = capture_->lines[line_].size();
    return;
  }
  const uint64_t occurrence = ++own.recorded;
  enqueue([&own, occurrence] {
    own.happened = std::max(own.happened, occurrence);
    own.at = EmulatedEvent::Clock::now();
  });
}

void EmulatedStream::wait(const DeviceEvent& event) {
  const auto& own = static_cast<const EmulatedEvent&>(event);
  const std::shared_ptr<EmulatedCapture> other = own.capture.lock();
  if (capture_ != other) {
    if (capture_) throw misuse("an event is awaited that the capture does not know");
    capture_ = other;
    line_ = other->lines.size();
    other->lines.emplace_back();
    other->streams.push_back(this);
  }
  if (capture_) {
    capture_->lines[line_].push_back({{}, own.line, own.items});
  } else {
    put({{}, &own, own.recorded});
  }
}

void EmulatedStream::publish(std::span<const SmallValue> values, uint64_t* mailbox) {
  cuda_emulated::publish(*this, values, mailbox);
}

void EmulatedStream::poll() {
  if (capture_) throw misuse("the host waits for a stream that is being captured");
  device_.run_one();
}

void EmulatedStream::synchronise() {
  if (capture_) throw misuse("the host waits for a stream that is being captured");
  ++device_.counters_.synchronisations;
  device_.run_until_done(*this);
  throw_fault(fault_);
}

void EmulatedStream::begin_capture() {
  if (capture_) throw misuse("a graph is captured within another");
  capture_ = std::make_shared<EmulatedCapture>();
  capture_->lines.emplace_back();
  capture_->streams.push_back(this);
  line_ = 0;
}

std::unique_ptr<DeviceGraph> EmulatedStream::end_capture() {
  if (!capture_ || line_ != 0) throw misuse("no graph is being captured");
  const std::shared_ptr<EmulatedCapture> ended = std::move(capture_);
  capture_ = nullptr;
  for (EmulatedStream* stream : ended->streams) stream->capture_ = nullptr;
  for (size_t line = 1; line < ended->lines.size(); ++line) {
    const auto joins = [&](const EmulatedCapture::Item& item) {
      return !item.work && item.line == line && item.items == ended->lines[line].size();
    };
    if (std::ranges::none_of(ended->lines[0], joins))
      throw misuse("a stream is captured that the first one does not wait for");
  }
  return std::make_unique<EmulatedGraph>(std::move(ended->lines));
}

/// One line is as early or as late as it may be, or they take turns as it comes.
void EmulatedStream::launch(const DeviceGraph& graph) {
  ++device_.counters_.graph_launches;
  const size_t way = device_.draw(3);
  static_cast<const EmulatedGraph&>(graph).each(
      [this, way](size_t end) {
        if (way == 0) return size_t{0};
        return way == 1 ? end - 1 : device_.draw(end);
      },
      [this](const std::function<void()>& work) { enqueue(work); });
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

size_t EmulatedDevice::draw(size_t end) {
  random_ = random_ * 6364136223846793005u + emulation::emulation_seed() * 2 + 1;
  return (random_ >> 33) % end;
}

void EmulatedDevice::run_one() {
  const size_t first = draw(streams_.size());
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
