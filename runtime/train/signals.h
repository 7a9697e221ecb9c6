// Stopping a run from outside. The first SIGINT, SIGTERM, SIGHUP (the terminal was closed) or
// SIGUSR1 only sets a flag: the session finishes its step, saves and exits with code 75. A second
// SIGINT or SIGTERM ends the process at once with 130 or 143; more SIGHUP or SIGUSR1 change
// nothing, since shells and batch systems send those to every process of a job.
#pragma once

#include <array>
#include <csignal>

namespace halfnote {

/// Takes the signals over while it lives and gives them back after. A SIGINT or SIGHUP that was
/// ignored before (a background job, nohup) stays ignored; SIGPIPE and SIGXFSZ become errors of the
/// write that caused them. One at a time: a second one throws Error(kInternal).
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// The signal that asked to stop, or 0. Safe from any thread.
  int requested() const;

 private:
  static constexpr std::array<int, 6> kSignals = {SIGINT,  SIGTERM, SIGHUP,
                                                  SIGUSR1, SIGPIPE, SIGXFSZ};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace halfnote
