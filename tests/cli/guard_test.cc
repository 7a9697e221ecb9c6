// What becomes of an exception that a verb throws; the program itself has no known way to 70.
#include "cli/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace halfnote::cli {
namespace {

using testing::HasSubstr;

struct Ended {
  int code;
  std::string err;
};

Ended end_of(const std::function<int()>& action, bool as_json = false) {
  testing::internal::CaptureStderr();
  const int code = guarded(action, as_json);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(Guard, AnyOtherExceptionIsABugOfOurs) {
  const Ended ended = end_of([]() -> int { throw std::logic_error("no such slot"); });
  EXPECT_EQ(ended.code, 70);
  EXPECT_EQ(ended.err,
            "halfnote: error (internal): no such slot; this is a bug of halfnote: please report "
            "it\n");
  const Ended json = end_of([]() -> int { throw std::out_of_range("at"); }, true);
  EXPECT_EQ(json.code, 70);
  const auto fields = nlohmann::json::parse(json.err);
  EXPECT_EQ(fields["kind"], "internal");
  EXPECT_EQ(fields["code"], 70);
}

TEST(Guard, NoMemoryIsSeven) {
  const Ended ended = end_of([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(ended.code, 7);
  EXPECT_THAT(ended.err, HasSubstr("error (memory): out of memory"));
}

TEST(Guard, AnErrorHasItsOwnCodeAndNamesCannotSteerTheTerminal) {
  const Ended ended = end_of([]() -> int {
    throw Error(ErrorCode::kModel, "bad \x1b[31m name").at({"m.onnx", {}, {}});
  });
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.err, "halfnote: error (model): m.onnx: bad \\x1b[31m name\n");
}

TEST(Guard, WithoutAnExceptionTheCodeOfTheVerbStands) {
  EXPECT_EQ(end_of([] { return 0; }).code, 0);
  const Ended stopped = end_of([] { return 75; });
  EXPECT_EQ(stopped.code, 75);
  EXPECT_EQ(stopped.err, "");
}

}  // namespace
}  // namespace halfnote::cli
