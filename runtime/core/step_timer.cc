#include "runtime/core/step_timer.h"

#include <algorithm>

#include "runtime/core/state_store.h"

namespace halfnote {

StepTimer::StepTimer(DeviceContext& context, ProgramProfile& profile)
    : stream_(*context.stream), profile_(profile) {
  // One more than there are ends: of the steps, and of the copies behind them.
  const size_t count = profile.program().steps.size() + 2;
  for (size_t i = 0; i < count; ++i)
    events_.push_back(context.device->make_event(EventKind::kTimed));
}

void StepTimer::record() { stream_.record(*events_[next_++]); }

void StepTimer::begin() {
  next_ = 0;
  begun_ = profile_.now();
  record();
}

void StepTimer::end_step() { record(); }

void StepTimer::end_run() {
  record();
  taken_ = true;
}

void StepTimer::collect() {
  if (!taken_) return;
  taken_ = false;
  ProgramProfile::Run run;
  // The device begins a run when it has ended the one before; the host knows when it has ended.
  const double length = events_.back()->seconds_since(*events_.front());
  run.begin = std::max(begun_, profile_.now() - length);
  for (size_t i = 1; i < events_.size(); ++i)
    run.ends.push_back(run.begin + events_[i]->seconds_since(*events_.front()));
  profile_.add_run(run);
}

}  // namespace halfnote
