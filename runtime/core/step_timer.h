// The times of the steps of a program on a device, by its own clock: events in the stream, one
// before the first step and one behind each.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "runtime/core/profile/profiler.h"

namespace halfnote {

/// Of one run at a time. While steps are timed they are launched one by one: where a kernel is
/// shorter than its launch takes the host, its time is that of the launch.
class StepTimer {
 public:
  StepTimer(DeviceContext& context, ProgramProfile& profile);

  /// Before the first step, behind each, and behind the copies to the states, in this order.
  void begin();
  void end_step();
  void end_run();
  /// Gives the profile the times of the run, which has ended; once, and only if it was begun.
  void collect();
  /// The run has failed: its times are nobody's.
  void drop() { taken_ = false; }

 private:
  void record();

  Stream& stream_;
  ProgramProfile& profile_;
  std::vector<std::unique_ptr<DeviceEvent>> events_;
  size_t next_ = 0;
  bool taken_ = false;
  double begun_ = 0;  // when the host put the run into the stream
};

}  // namespace halfnote
