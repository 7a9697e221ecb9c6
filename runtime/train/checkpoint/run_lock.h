// One process at a time in a run folder.
#pragma once

#include <filesystem>

namespace halfnote {

/// Holds RUN/lock (made if missing) until destroyed or until the process ends, however it ends.
/// Throws Error(kUsage) naming the process that holds it; Error(kIo) if it cannot be made.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace halfnote
