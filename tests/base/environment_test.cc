// Variables of the environment: words and numbers, and what is neither.
#include "base/system/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr const char* kVariable = "HALFNOTE_ENVIRONMENT_TEST";

class Environment : public testing::Test {
 protected:
  ~Environment() override { ::unsetenv(kVariable); }
  void set(const char* text) { ::setenv(kVariable, text, 1); }
  template <class Read>
  std::string error_of(const Read& read) {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "";
  }
};

TEST_F(Environment, Words) {
  const auto read = [] { return word_of_environment(kVariable, {"always", "never", "once"}); };
  EXPECT_EQ(read(), "");
  for (const char* word : {"", "always", "never", "once"}) {
    set(word);
    EXPECT_EQ(read(), word);
  }
  for (const char* word : {"Always", "always ", "1", "alwaysnever", "al"}) {
    set(word);
    EXPECT_THAT(error_of(read), testing::HasSubstr(kVariable)) << word;
    EXPECT_THAT(error_of(read), testing::HasSubstr("always, never or once")) << word;
    EXPECT_THAT(error_of(read), testing::HasSubstr(word));
  }
}

TEST_F(Environment, Numbers) {
  const auto read = [] { return number_of_environment(kVariable); };
  EXPECT_FALSE(read());
  set("");
  EXPECT_FALSE(read());
  set("0");
  EXPECT_EQ(read(), 0u);
  set("18446744073709551615");
  EXPECT_EQ(read(), UINT64_MAX);
  for (const char* word : {"abc", "-1", "1.5", "1x", " 1", "0x10", "18446744073709551616"}) {
    set(word);
    EXPECT_THAT(error_of(read), testing::HasSubstr("no number")) << word;
  }
}

}  // namespace
}  // namespace halfnote
