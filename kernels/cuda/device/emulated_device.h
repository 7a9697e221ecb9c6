// A device without hardware: its memory is the host's, its kernels run under the emulation. Streams
// are queues that stand still until somebody synchronises, and then take turns at random: who reads
// a result, or changes an operand, without waiting for the device gets wrong numbers here too. So
// do the lines of a captured graph, anew in each launch.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/emulation/emulator.h"
#include "kernels/device.h"

namespace halfnote::cuda_emulated {

class EmulatedDevice;

class EmulatedStream final : public Stream {
 public:
  explicit EmulatedStream(EmulatedDevice& device);
  ~EmulatedStream() override;
  void copy(void* to, const void* from, size_t bytes) override;
  void fill(void* to, uint8_t value, size_t bytes) override;
  void copy_blocks(const BlockCopy& copy) override;
  void copy_if(const DeviceCondition& condition, void* to, const void* from, size_t bytes) override;
  void note_fault_if(const DeviceCondition& condition, const DeviceFault* noted) override;
  void record(DeviceEvent& event) override;
  void wait(const DeviceEvent& event) override;
  void publish(std::span<const SmallValue> values, uint64_t* mailbox) override;
  /// One item of some queue is done.
  void poll() override;
  void synchronise() override;
  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;
  void launch(const DeviceGraph& graph) override;

  /// Puts work of the host into the queue: a library call.
  void enqueue(std::function<void()> work);
  /// Puts an emulated kernel into the queue: `body` is called once a thread with a copy of the
  /// `bytes` of its arguments.
  void enqueue_grid(const emulation::GridShape& shape, void (*body)(const void*),
                    const void* arguments, size_t bytes);
  EmulatedDevice& device() { return device_; }

 protected:
  DeviceFault* own_fault() override { return &fault_; }

 private:
  friend class EmulatedDevice;
  struct Item {
    std::function<void()> work;
    const class EmulatedEvent* awaited = nullptr;  // the item is done once this has happened
    uint64_t occurrence = 0;
  };
  void put(Item item);

  EmulatedDevice& device_;
  std::deque<Item> queue_;
  std::shared_ptr<class EmulatedCapture> capture_;  // that the stream is part of
  size_t line_ = 0;                                 // of it
  DeviceFault fault_;
};

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(size_t memory_bytes = size_t{8} << 30) : free_bytes_(memory_bytes) {}
  std::string_view name() const override { return "cuda-emulated"; }
  std::string description() const override { return "emulated CUDA device on the host"; }
  std::string hardware() const override { return "emulated CUDA device"; }
  std::string libraries() const override { return "plain loops"; }
  bool has_own_memory() const override { return false; }
  const KernelTable& kernels() const override;
  const RegionLayout& regions() const override;
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<DeviceEvent> make_event(EventKind kind) override;
  const DeviceCounters& counters() const override { return counters_; }
  DeviceCounters& count() { return counters_; }

  /// Runs the queues, one item of a random one after the other, until that of `stream` is empty.
  void run_until_done(EmulatedStream& stream);
  /// Runs one item of a random queue.
  void run_one();

 protected:
  std::byte* acquire(size_t bytes, MemoryKind kind) override;
  void release(std::byte* memory, MemoryKind kind) override;

 private:
  friend class EmulatedStream;
  bool advance(EmulatedStream& stream);
  /// A number below `end`, another one each time.
  size_t draw(size_t end);

  DeviceCounters counters_;
  std::vector<EmulatedStream*> streams_;
  std::vector<std::pair<std::byte*, size_t>> allocations_;
  size_t free_bytes_;
  uint64_t random_ = 0x9e3779b97f4a7c15u;
};

}  // namespace halfnote::cuda_emulated
