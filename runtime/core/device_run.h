// A Program on a device: its arena, constants and inputs in the device's memory, and the whole step
// captured once as a graph that every run launches again.
//
// Before a run the inputs are put into pinned memory, from which the graph fetches them. Nothing
// comes back by itself: a result is fetched when somebody reads it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "runtime/core/plan.h"
#include "runtime/core/state_store.h"

namespace halfnote {

class DeviceRun {
 public:
  /// Takes all the memory that the program needs, and captures it. Program, store and device must
  /// outlive this; the store is attached to the device.
  DeviceRun(DeviceContext& context, const Program& program, StateStore& store);

  /// Starts a run and does not wait for it. The inputs may change as soon as this returns.
  void run(std::span<const Tensor> inputs);
  /// The bytes of output `index` of the last run, valid until the next one; waits for the run.
  const std::byte* output(size_t index);
  /// Where the bytes of a value are on the device.
  std::byte* address(const BufferRef& ref);

 private:
  void put_constants();
  void capture();
  /// Puts the whole step into the stream.
  void record();

  DeviceContext& context_;
  const Program& program_;
  StateStore& store_;
  Device::Memory arena_, constants_, inputs_, staging_, results_;
  std::vector<size_t> constant_offsets_, input_offsets_, result_offsets_;
  std::vector<bool> fetched_;
  std::unique_ptr<DeviceGraph> graph_;
  bool in_flight_ = false;
};

}  // namespace halfnote
