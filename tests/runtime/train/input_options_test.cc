#include "runtime/train/data/input_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/train/support.h"

namespace halfnote {
namespace {

using test::expect_error;

TEST(Normalize, ReadsOneNumberOrOneAChannel) {
  InputOptions options;
  parse_normalize("0.286,0.353", options);
  EXPECT_THAT(options.scaling.mean, testing::ElementsAre(0.286f));
  expect_error(ErrorCode::kUsage, {"--normalize 1,2", "one of each input"},
               [&] { parse_normalize("1,2", options); });
  options = {};
  parse_normalize("0.49/0.48/0.45,0.25/0.24/0.26", options);
  EXPECT_THAT(options.scaling.deviation, testing::ElementsAre(0.25f, 0.24f, 0.26f));
  for (const char* text :
       {"", "1", "1,2,3", "a,1", "1,", "0,0", "0,-1", "1/2,1", "nan,1", "0,inf", "0 ,1"}) {
    options = {};
    expect_error(ErrorCode::kUsage, {"--normalize"}, [&] { parse_normalize(text, options); });
  }
}

TEST(Words, OfOptionsAreChecked) {
  EXPECT_EQ(resize_from_name("bilinear"), Resize::kBilinear);
  expect_error(ErrorCode::kUsage, {"none, nearest or bilinear", "\"cubic\""},
               [] { resize_from_name("cubic"); });
  InputOptions options;
  for (const char* text : {"", "a", "=a", "a=", "a=b,"}) {
    expect_error(ErrorCode::kUsage, {"expected INPUT=FIELD"},
                 [&] { parse_input_names(text, options); });
  }
}

}  // namespace
}  // namespace halfnote
