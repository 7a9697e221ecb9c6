#include "runtime/core/profile/profiler.h"

#include <algorithm>
#include <limits>

namespace halfnote {
namespace {

constexpr size_t kTracedRuns = 3;  // a trace of more is slow to open, and tells no more

}  // namespace

ProgramProfile::ProgramProfile(std::string name, const Program& program, Clock::time_point origin)
    : name_(std::move(name)), program_(&program), origin_(origin) {
  ends_.resize(program.steps.size() + 1);
  traced_.reserve(kTracedRuns);
  forget();
}

void ProgramProfile::forget() {
  sums_.assign(ends_.size(), 0);
  best_.assign(ends_.size(), std::numeric_limits<double>::infinity());
  run_best_ = std::numeric_limits<double>::infinity();
  run_sum_ = 0;
  runs_ = 0;
  traced_.clear();
}

void ProgramProfile::begin_run() { begin_run_at(now()); }

void ProgramProfile::begin_run_at(double time) {
  if (begun_++ == 1) forget();  // the first run
  step_ = 0;
  begin_ = time;
}

void ProgramProfile::tick() { ends_[step_++] = now(); }

void ProgramProfile::end_run() {
  tick();
  count_run();
}

void ProgramProfile::add_run(const Run& run) {
  begin_run_at(run.begin);
  ends_ = run.ends;
  count_run();
}

void ProgramProfile::count_run() {
  double before = begin_;
  for (size_t i = 0; i < ends_.size(); ++i) {
    const double seconds = ends_[i] - before;
    sums_[i] += seconds;
    best_[i] = std::min(best_[i], seconds);
    before = ends_[i];
  }
  if (runs_ == 0) first_begin_ = begin_;
  last_end_ = ends_.back();
  run_sum_ += last_end_ - begin_;
  run_best_ = std::min(run_best_, last_end_ - begin_);
  ++runs_;
  if (traced_.size() < kTracedRuns) traced_.push_back({begin_, ends_});
}

ProgramProfile& Profiler::add(std::string_view name, const Program& program) {
  programs_.push_back(std::make_unique<ProgramProfile>(std::string(name), program, origin_));
  return *programs_.back();
}

}  // namespace halfnote
