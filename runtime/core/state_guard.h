// Takes a run that broke off back: a Program writes most states at its end, but counters, seeds and
// small statistics may be written by the steps before, and a kernel that refuses an index in the
// data comes in between. The guard copies those, few bytes, before each run.
#pragma once

#include <vector>

#include "runtime/core/plan.h"
#include "runtime/core/state_store.h"

namespace halfnote {

class StateGuard {
 public:
  StateGuard() = default;
  StateGuard(const Program& program, const StateStore& store);

  /// Before a run. `base`: of the store.
  void save(const std::byte* base);
  /// After step `broken` of the program threw: puts back what was written. False if more was
  /// written than the guard holds: the states are no longer those before the run.
  bool restore(std::byte* base, size_t broken) const;

 private:
  struct Range {
    size_t offset = 0, bytes = 0;
  };
  std::vector<Range> ranges_;
  std::vector<std::byte> saved_;  // of the ranges, one behind the other
  size_t unguarded_ = 0;          // the first step that writes what is not in them
};

}  // namespace halfnote
