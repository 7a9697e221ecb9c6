// The ends for want of memory that no caller can catch: an exception within a parallel loop of a
// library or a thread of its own, and the OpenMP runtime, which ends the program where it gets no
// memory or thread. Nor does oneDNN see that there was no memory for code that it generates: it
// jumps to address 0.
#pragma once

#include "base/system/vanished_file.h"

namespace halfnote::cli {

/// While it lives, such an end prints `halfnote: error (memory): out of memory` and has exit code 7
/// (docs/exit-codes.md); nothing is saved. One for the program's main function.
class NoMemoryReport {
 public:
  explicit NoMemoryReport(ErrorForm form);
  ~NoMemoryReport();
  NoMemoryReport(const NoMemoryReport&) = delete;
  NoMemoryReport& operator=(const NoMemoryReport&) = delete;
};

}  // namespace halfnote::cli
