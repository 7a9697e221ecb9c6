// A Program on a device: its constants and inputs in the device's memory, an arena that all
// programs of a session share, and the whole step captured once as a graph that every run launches
// again.
//
// Two runs may be on their way at a time: the inputs of one are brought by a stream of their own
// while the other one computes. Each has its own pinned memory, inputs and graph; the arena is that
// of both, since they compute one after the other. At its end a run publishes its small outputs and
// the small states (loss scale, counters) to a mailbox in pinned memory, which the host polls: it
// never waits for the device. All other results are fetched when somebody reads them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "runtime/core/plan.h"
#include "runtime/core/state_store.h"
#include "runtime/core/step_timer.h"
#include "runtime/core/steps/step_numbers.h"

namespace halfnote {

/// Where the lines of a graph meet, by the step before which they do, and at 0 where they part.
/// Empty: there is one line.
using Meetings = std::map<size_t, std::unique_ptr<DeviceEvent>>;

class DeviceRun final : private DeviceArena::User {
 public:
  /// Takes all the memory that the program needs, and captures it. Program, store and device must
  /// outlive this; the store is attached to the device.
  DeviceRun(DeviceContext& context, const Program& program, StateStore& store);
  /// Waits for what is on its way.
  ~DeviceRun();
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;

  /// Runs that may be on their way at a time.
  static constexpr int kMostRuns = 2;

  /// Starts a run and gives its number, from 1; waits for the last but one. The inputs may change
  /// as soon as this returns.
  uint64_t start(std::span<const Tensor> inputs);
  /// Runs from now on launch their steps one by one, with their times, in place of the captured
  /// step; with null as before.
  void time_steps(ProgramProfile* profile);
  /// Waits for one of the last two runs. Throws what went wrong on the device.
  void wait(uint64_t run);
  /// What one of the last two runs, which must have ended, gave as output `index`, or left in a
  /// state; null if that is no small value.
  const std::byte* small_output(size_t index, uint64_t run) const;
  const std::byte* small_state(const StateEntry& entry, uint64_t run) const;
  /// The bytes of output `index` of the last run, valid until the next one; waits for the run.
  const std::byte* output(size_t index);
  /// Nobody reads the outputs of the last run any more: they need not outlive the arena's next use.
  void drop_outputs() { dropped_ = true; }
  /// Bytes of the device's memory for outputs that did outlive it.
  size_t kept_bytes() const { return kept_bytes_; }
  /// Where the bytes of a value are on the device.
  std::byte* address(const BufferRef& ref);

 private:
  /// What a run has to itself.
  struct Slot {
    Device::Memory staging, inputs, mailbox;
    Device::Memory tables;                 // of kernels (Kernel::write_table)
    std::unique_ptr<DeviceEvent> brought;  // the inputs
    std::unique_ptr<DeviceGraph> graph;
    std::unique_ptr<StepTimer> timer;    // while steps are timed
    std::vector<const std::byte*> kept;  // the inputs of the last run, where they are kept
    uint64_t runs = 0;                   // so far: the count that the mailbox gets to
  };

  /// Calls `body(kernel, buffers)` with where the operands of step `index` are for the recorded
  /// slot.
  template <class Body>
  void with_buffers(size_t index, Stream& stream, const Body& body);
  void put_constants();
  void put_tables(Slot& slot);
  void find_small_values();
  void make(Slot& slot);
  void capture(Slot& slot);
  void enter_arena();
  void leave_arena(size_t bytes) override;
  /// Puts the whole step into the stream.
  void record(StepTimer* timer = nullptr);
  void bring(Slot& slot, std::span<const Tensor> inputs);
  uint64_t* words(const Slot& slot) const {
    return reinterpret_cast<uint64_t*>(slot.mailbox.get());
  }
  Slot& slot_of(uint64_t run) { return slots_[run % kMostRuns]; }
  const Slot& slot_of(uint64_t run) const { return slots_[run % kMostRuns]; }

  DeviceContext& context_;
  const Program& program_;
  StateStore& store_;
  std::byte* base_ = nullptr;  // of the arena when the step was captured
  Meetings meetings_;
  Device::Memory constants_, results_;
  std::vector<Device::Memory> kept_;  // outputs that another program would overwrite
  std::vector<bool> moved_;           // there
  size_t kept_bytes_ = 0;
  bool dropped_ = false;
  std::vector<size_t> constant_offsets_, input_offsets_, result_offsets_, table_offsets_;
  std::vector<bool> fetched_;
  std::array<Slot, kMostRuns> slots_;
  Slot* recorded_ = &slots_.front();  // whose inputs address() gives
  uint64_t runs_ = 0;
  // What the mailboxes hold, in order, and for each output and state where; 0: not there.
  std::vector<SmallValue> small_values_;
  size_t fault_word_ = 0;  // and those behind it: a DeviceFault
  StepNumbers numbers_;
  std::vector<size_t> output_words_;
  std::map<size_t, size_t> state_words_;  // by offset in the store
};

}  // namespace halfnote
