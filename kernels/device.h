// A device that is not the host: its memory, streams, events and captured graphs. The executor and
// the kernels speak to it through these narrow classes; CUDA and its emulation implement them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/kernel.h"

namespace halfnote {

struct RegionLayout;  // kernels/layout.h

/// What the host did so far. In a steady step there is one graph launch, and nothing else.
struct DeviceCounters {
  uint64_t launches = 0;  // of kernels, one by one or while a graph is captured
  uint64_t graph_launches = 0;
  uint64_t copies = 0;
  uint64_t allocations = 0;
  uint64_t synchronisations = 0;

  friend bool operator==(const DeviceCounters&, const DeviceCounters&) = default;
};

/// What a kernel found wrong in its data. Kernels cannot throw: the first one notes it here, in
/// memory that the host reads too, and the next synchronise() throws Error(kData). It stays until
/// it is thrown.
struct DeviceFault {
  enum Kind : int32_t { kNone, kIndex, kLabel, kLabelNotIgnored, kLength, kDivision, kRegion };
  int32_t kind = kNone;
  int32_t step = -1;     // Stream::begin_step() of the kernel that noted it; -1: none
  int64_t value = 0;     // the index, label or length; else nothing
  int64_t limit = 0;     // how many there are; the longest
  int64_t position = 0;  // of a label
  int64_t ignored = 0;   // of kLabelNotIgnored: the one that would not count
};

/// Where kernels note a fault, and the step that they belong to.
struct FaultPlace {
  DeviceFault* at = nullptr;
  int32_t step = -1;
};

/// A captured run of kernels and copies, ready to be launched again and again.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// A small value in the device's memory.
struct SmallValue {
  const std::byte* from = nullptr;
  uint32_t bytes = 0;  // at most 8
};

/// Blocks of `bytes` bytes each, which begin so far apart.
struct BlockCopy {
  std::byte* to = nullptr;
  size_t to_apart = 0;
  const std::byte* from = nullptr;
  size_t from_apart = 0;
  size_t bytes = 0, blocks = 0;
};

/// Holds if the bool at `place`, in the device's memory, is `wanted`.
struct DeviceCondition {
  const std::byte* place = nullptr;
  bool wanted = true;
};

/// A point in a stream that others can wait for.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// From when `earlier` happened to when this did, on the device's clock. Both are events with
  /// times, and have happened.
  virtual double seconds_since(const DeviceEvent& earlier) const = 0;
};
enum class EventKind : uint8_t { kPlain, kTimed };

/// Work in order. Everything returns at once; what goes wrong on the device is thrown by a later
/// call, at the latest by synchronise().
class Stream {
 public:
  virtual ~Stream() = default;
  /// Between memory of the device, pinned memory, or both. The bytes are read when the stream gets
  /// there.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill(void* to, uint8_t value, size_t bytes) = 0;
  virtual void copy_blocks(const BlockCopy& copy) = 0;
  /// Copies if the condition holds when the stream gets there.
  virtual void copy_if(const DeviceCondition& condition, void* to, const void* from,
                       size_t bytes) = 0;
  /// Notes in fault() what was noted elsewhere, with the step of who noted it there, if the
  /// condition holds.
  virtual void note_fault_if(const DeviceCondition& condition, const DeviceFault* noted) = 0;
  virtual void record(DeviceEvent& event) = 0;
  virtual void wait(const DeviceEvent& event) = 0;
  /// Copies `values` into pinned memory, value i to the word i + 1 of `mailbox`, and then counts
  /// word 0 up: the host may look at it, and at them once it has changed, without waiting.
  virtual void publish(std::span<const SmallValue> values, uint64_t* mailbox) = 0;
  /// To be called by who looks at a mailbox until it changes: throws what went wrong on the device,
  /// but for faults, which may be published.
  virtual void poll() = 0;
  /// Waits until all is done.
  virtual void synchronise() = 0;
  /// Between these two nothing runs: it becomes the graph.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;
  virtual void launch(const DeviceGraph& graph) = 0;
  /// Where kernels of this stream note what is wrong with their data: where its host looks, or
  /// where note_faults_in() said last.
  FaultPlace fault() { return {noted_in_ != nullptr ? noted_in_ : own_fault(), step_}; }
  /// Kernels put into the stream from now on belong to the step of a program, or to the node in a
  /// body of one, that has this number: what they note says so. -1: to none.
  void begin_step(int32_t step) { step_ = step; }
  int32_t step() const { return step_; }
  /// Kernels put into the stream from now on note it there, in memory of the device; null: where
  /// the host looks. Returns where they did so far.
  DeviceFault* note_faults_in(DeviceFault* place) { return std::exchange(noted_in_, place); }

 protected:
  virtual DeviceFault* own_fault() = 0;

 private:
  DeviceFault* noted_in_ = nullptr;
  int32_t step_ = -1;
};

/// The buffers of a run on a device: its kernels are given these, and work on the stream.
struct DeviceBuffers : KernelBuffers {
  Stream* stream = nullptr;
};

/// The stream of a device kernel's run. Kernels of the CPU have none.
inline Stream& stream_of(const KernelBuffers& buffers) {
  return *static_cast<const DeviceBuffers&>(buffers).stream;
}

/// A capture that an error between its begin and end() ends, too.
class Capture {
 public:
  explicit Capture(Stream& stream) : stream_(stream) { stream_.begin_capture(); }
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::unique_ptr<DeviceGraph> end() {
    open_ = false;
    return stream_.end_capture();
  }

 private:
  Stream& stream_;
  bool open_ = true;
};

/// Throws what `fault` says, and clears it.
void throw_fault(DeviceFault& fault);

enum class MemoryKind : uint8_t { kDevice, kPinned };

/// Bytes of a device's own memory that were asked for: now, and the most at any time.
struct DeviceMemory {
  size_t now = 0, most = 0;
};

class Device {
 public:
  /// Gives memory back to the device it came from, which must still be there.
  struct Free {
    Device* device = nullptr;
    MemoryKind kind = MemoryKind::kDevice;
    size_t bytes = 0;
    void operator()(std::byte* memory) const {
      device->release(memory, kind);
      if (kind == MemoryKind::kDevice) device->memory_.now -= bytes;
    }
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  virtual ~Device() = default;
  /// `cuda:0`, `cuda-emulated`, and the hardware in words.
  virtual std::string_view name() const = 0;
  virtual std::string description() const = 0;
  /// What times that are measured on it depend on: the kind of hardware with its driver, and the
  /// libraries of kernels with their versions.
  virtual std::string hardware() const = 0;
  virtual std::string libraries() const = 0;
  virtual const KernelTable& kernels() const = 0;
  /// How it keeps the values of convolution regions (kernels/layout.h).
  virtual const RegionLayout& regions() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<DeviceEvent> make_event(EventKind kind = EventKind::kPlain) = 0;
  virtual const DeviceCounters& counters() const = 0;

  /// At least 256-byte aligned. Throws Error(kMemory) saying how much is free.
  Memory allocate(size_t bytes, MemoryKind kind = MemoryKind::kDevice) {
    Memory memory(acquire(bytes, kind), Free{this, kind, bytes});
    if (kind == MemoryKind::kDevice) {
      memory_.now += bytes;
      memory_.most = std::max(memory_.most, memory_.now);
    }
    return memory;
  }
  /// Without what the libraries and the driver take for themselves.
  const DeviceMemory& memory() const { return memory_; }
  /// Is its memory none of the process's?
  virtual bool has_own_memory() const { return true; }

 protected:
  virtual std::byte* acquire(size_t bytes, MemoryKind kind) = 0;
  virtual void release(std::byte* memory, MemoryKind kind) = 0;

 private:
  DeviceMemory memory_;
};

/// Opens `cuda`, `cuda:N` or `cuda-emulated`; null for `cpu`, which is the host itself. Throws
/// Error(kDevice) with what to do if this build, the driver or the machine lacks it, Error(kUsage)
/// for a word that names no device. Nothing ever falls back to another device.
std::unique_ptr<Device> open_device(std::string_view name);

}  // namespace halfnote
