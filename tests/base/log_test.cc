// Messages on stderr: levels, plain text, no way for a message to steer the terminal; and when
// colour is wanted.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace halfnote {
namespace {

template <class Body>
std::string stderr_of(Body&& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

void log_one_of_each() {
  log_error("e {}", 1);
  log_warning("w {:.2f}", 0.5);
  log_info("i {}", "x");
  log_debug("d");
}

TEST(Log, IsAtInfoFromTheStart) {
  EXPECT_EQ(log_level(), LogLevel::kInfo);
  EXPECT_EQ(stderr_of(log_one_of_each), "error: e 1\nwarning: w 0.50\ninfo: i x\n");
}

TEST(Log, DropsWhatIsAboveTheLevel) {
  const std::pair<LogLevel, std::string> cases[] = {
      {LogLevel::kError, "error: e 1\n"},
      {LogLevel::kWarning, "error: e 1\nwarning: w 0.50\n"},
      {LogLevel::kDebug, "error: e 1\nwarning: w 0.50\ninfo: i x\ndebug: d\n"}};
  for (const auto& [level, text] : cases) {
    set_log_level(level);
    EXPECT_EQ(log_level(), level);
    EXPECT_EQ(stderr_of(log_one_of_each), text);
  }
  set_log_level(LogLevel::kInfo);
}

TEST(Log, WritesTextAsItIs) {
  EXPECT_EQ(stderr_of([] { log_info("{}", "100 % {} \\ é"); }), "info: 100 % {} \\ é\n");
  EXPECT_EQ(stderr_of([] { log_message(LogLevel::kInfo, "{} %v"); }), "info: {} %v\n");
  EXPECT_EQ(stderr_of([] { log_info("a\n\tb"); }), "info: a\n\tb\n");
}

TEST(Log, EscapesControlCharacters) {
  EXPECT_EQ(stderr_of([] { log_info("{}", "\x1b[2J\r\x7f"); }), "info: \\x1b[2J\\x0d\\x7f\n");
}

TEST(Log, LevelsHaveNames) {
  EXPECT_EQ(log_level_from_name("error"), LogLevel::kError);
  EXPECT_EQ(log_level_from_name("warning"), LogLevel::kWarning);
  EXPECT_EQ(log_level_from_name("info"), LogLevel::kInfo);
  EXPECT_EQ(log_level_from_name("debug"), LogLevel::kDebug);
  EXPECT_EQ(log_level_from_name("INFO"), std::nullopt);
  EXPECT_EQ(log_level_from_name(""), std::nullopt);
}

/// Sets or (nullptr) clears a variable of the environment until the end of the test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_ ? old_->c_str() : nullptr); }

 private:
  void set(const char* value) { value ? setenv(name_, value, 1) : unsetenv(name_); }

  const char* name_;
  std::optional<std::string> old_;
};

TEST(Color, IsForTerminalsThatWantIt) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  const int plain = open("/dev/null", O_WRONLY);
  if (terminal < 0) GTEST_SKIP() << "this system gives no pseudo-terminal";
  {
    const Variable no_color("NO_COLOR", nullptr), term("TERM", "xterm");
    EXPECT_TRUE(wants_color(terminal));
    EXPECT_FALSE(wants_color(plain));
    EXPECT_FALSE(wants_color(-1));
  }
  {
    const Variable no_color("NO_COLOR", "1"), term("TERM", "xterm");
    EXPECT_FALSE(wants_color(terminal));
  }
  {
    const Variable no_color("NO_COLOR", ""), term("TERM", "dumb");
    EXPECT_FALSE(wants_color(terminal));
  }
  close(terminal);
  close(plain);
}

}  // namespace
}  // namespace halfnote
