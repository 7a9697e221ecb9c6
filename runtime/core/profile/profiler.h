// When each step of each program ended: what a profile is made of (table.h, output.h).
//
// The clock is read once a step, so that the self times of a run add up to its length. Without a
// profiler an executor pays one comparison a step. On a device the clock is its own: an event
// between every two steps, which are then launched one by one in place of the captured step
// (runtime/core/step_timer.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/plan.h"

namespace halfnote {

/// The times of one program. Where it ran more than once, the first run is not counted: it touches
/// its memory for the first time.
class ProgramProfile {
 public:
  using Clock = std::chrono::steady_clock;

  /// One run, in seconds since the profiler was made.
  struct Run {
    double begin = 0;
    std::vector<double> ends;  // one a step of the program, and one for the copies to the states
  };

  /// The program must outlive the profile.
  ProgramProfile(std::string name, const Program& program, Clock::time_point origin);

  void begin_run();
  void end_step() { tick(); }
  /// After the copies to the states.
  void end_run();
  /// A whole run, whose times were taken elsewhere.
  void add_run(const Run& run);
  /// Seconds since the profiler was made.
  double now() const { return std::chrono::duration<double>(Clock::now() - origin_).count(); }

  const std::string& name() const { return name_; }
  const Program& program() const { return *program_; }
  /// Runs that the sums below are of.
  int64_t runs() const { return runs_; }
  /// Of one step of the program over all counted runs; the last index is that of the copies.
  double seconds(size_t step) const { return sums_[step]; }
  /// The same of its fastest run.
  double best_seconds(size_t step) const { return best_[step]; }
  /// From begin to end of a run, over all counted runs and the fastest.
  double run_seconds() const { return run_sum_; }
  double best_run_seconds() const { return run_best_; }
  /// Between the first counted begin and the last end, runs of other programs and all else
  /// included.
  double span_seconds() const { return last_end_ - first_begin_; }
  /// The first counted runs, step by step.
  const std::vector<Run>& traced() const { return traced_; }

 private:
  void tick();
  void forget();
  void begin_run_at(double time);
  void count_run();

  std::string name_;
  const Program* program_;
  Clock::time_point origin_;
  std::vector<double> ends_, sums_, best_;
  size_t step_ = 0;
  int64_t begun_ = 0, runs_ = 0;
  double begin_ = 0, run_sum_ = 0, run_best_ = 0, first_begin_ = 0, last_end_ = 0;
  std::vector<Run> traced_;
};

/// The profiles of all programs of a session (SessionOptions::profiler). It must outlive the
/// session, and is read before the session ends.
class Profiler {
 public:
  Profiler() : origin_(ProgramProfile::Clock::now()) {}

  /// The profile of a program that is about to run for the first time.
  ProgramProfile& add(std::string_view name, const Program& program);
  const std::vector<std::unique_ptr<ProgramProfile>>& programs() const { return programs_; }
  /// The device that all programs run on, by name; empty: the CPU.
  const std::string& device() const { return device_; }
  void set_device(std::string_view name) { device_ = name; }

 private:
  ProgramProfile::Clock::time_point origin_;
  std::string device_;
  std::vector<std::unique_ptr<ProgramProfile>> programs_;
};

}  // namespace halfnote
