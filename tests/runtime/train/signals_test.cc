// Signals: the first asks, the second ends the process, and all is as before afterwards.
#include "runtime/train/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "support.h"

namespace halfnote {
namespace {

TEST(Signals, AskOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    ::signal(signal, SIG_DFL);  // a script may have started the tests with SIGINT ignored
    SignalScope scope;
    EXPECT_EQ(scope.requested(), 0);
    ::raise(signal);
    EXPECT_EQ(scope.requested(), signal);
  }
}

TEST(Signals, GoBackToWhatTheyWere) {
  struct sigaction before {
  }, after{};
  before.sa_handler = [](int) {};
  ::sigaction(SIGTERM, &before, nullptr);
  { SignalScope scope; }
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  ::signal(SIGTERM, SIG_DFL);
}

TEST(Signals, KeepTheLaterUsr1FromEndingTheRun) {
  SignalScope scope;
  ::raise(SIGUSR1);
  ::raise(SIGUSR1);
  EXPECT_EQ(scope.requested(), SIGUSR1);
}

TEST(Signals, LeaveAnIgnoredInterruptIgnored) {
  ::signal(SIGINT, SIG_IGN);
  {
    SignalScope scope;
    ::raise(SIGINT);
    EXPECT_EQ(scope.requested(), 0);
  }
  ::signal(SIGINT, SIG_DFL);
}

TEST(Signals, TurnABrokenPipeIntoAnError) {
  SignalScope scope;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::close(ends[1]);
  EXPECT_EQ(scope.requested(), 0);
}

TEST(Signals, AreTakenOverOnce) {
  SignalScope scope;
  test::expect_error(ErrorCode::kInternal, {"already taken over"}, [] { SignalScope second; });
}

/// The exit code of a child that takes the signals over and gets these.
int exit_code_after(std::initializer_list<int> signals) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    ::signal(SIGINT, SIG_DFL);
    SignalScope scope;
    for (const int signal : signals) ::raise(signal);
    ::_exit(scope.requested() == 0 ? 0 : 75);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(Signals, EndTheProcessTheSecondTime) {
  EXPECT_EQ(exit_code_after({}), 0);
  EXPECT_EQ(exit_code_after({SIGTERM}), 75);
  EXPECT_EQ(exit_code_after({SIGINT, SIGINT}), 130);
  EXPECT_EQ(exit_code_after({SIGTERM, SIGTERM}), 143);
  EXPECT_EQ(exit_code_after({SIGUSR1, SIGTERM}), 143);
  EXPECT_EQ(exit_code_after({SIGTERM, SIGUSR1}), 75);
  EXPECT_EQ(exit_code_after({SIGHUP, SIGHUP}), 75);
}

}  // namespace
}  // namespace halfnote
