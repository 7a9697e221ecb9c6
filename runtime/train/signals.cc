#include "runtime/train/signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/error.h"
#include "base/system/temporary_files.h"

namespace halfnote {
namespace {

// A handler may touch nothing but lock-free atomics; there is one scope at a time.
std::atomic<int> requested_signal{0};
std::atomic<bool> scope_open{false};
static_assert(std::atomic<int>::is_always_lock_free);

void handle(int signal) {
  const int saved = errno;
  int none = 0;
  const bool first = requested_signal.compare_exchange_strong(none, signal);
  if (!first && signal != SIGUSR1 && signal != SIGHUP) {
    remove_temporary_files();
    ::_exit(128 + signal);
  }
  if (first) {
    static constexpr char kMessage[] =
        "\nstopping after this step; once more to stop at once without saving\n";
    [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  }
  errno = saved;
}

bool asks_to_stop(int signal) { return signal != SIGPIPE && signal != SIGXFSZ; }

}  // namespace

SignalScope::SignalScope() {
  if (scope_open.exchange(true))
    throw Error(ErrorCode::kInternal, "signals are already taken over");
  requested_signal = 0;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = asks_to_stop(kSignals[i]) ? handle : SIG_IGN;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    const bool may_stay = kSignals[i] == SIGINT || kSignals[i] == SIGHUP;
    const bool stays_ignored = may_stay && before_[i].sa_handler == SIG_IGN;
    if (!stays_ignored) ::sigaction(kSignals[i], &action, nullptr);
  }
}

SignalScope::~SignalScope() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  scope_open = false;
}

int SignalScope::requested() const { return requested_signal; }

}  // namespace halfnote
