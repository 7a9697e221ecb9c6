#include "passes/nesting.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>

namespace halfnote {
namespace {

std::string times(int count, std::string_view text) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

TEST(Nesting, JsonAtTheLimitAndAboveIt) {
  EXPECT_FALSE(json_nests_deeper(times(32, "[") + times(32, "]")));
  EXPECT_TRUE(json_nests_deeper(times(33, "[") + times(33, "]")));
  EXPECT_TRUE(json_nests_deeper(times(33, "{\"a\":")));
  EXPECT_FALSE(json_nests_deeper(times(100, "[],{},")));
  EXPECT_FALSE(json_nests_deeper(""));
}

TEST(Nesting, AJsonKeyThatStandsTwiceIsNamedWithItsObjects) {
  const struct {
    const char* text;
    const char* key;
  } cases[] = {
      {R"({"a": 1, "b": 2})", ""},
      {R"({"a": 1, "b": 2, "a": 3})", "a"},
      {R"({"fp16": {"enabled": true, "enabled": false}})", "fp16.enabled"},
      {R"({"a": {"x": {"k": 1, "k": 1}}, "b": 1, "b": 2})", "a.x.k"},
      {R"({"a": {"k": 1}, "b": {"k": 1}, "k": 1})", ""},   // in different objects
      {R"([{"k": 1}, {"k": 2}, {"l": 1, "l": 2}])", "l"},  // an array has no key
      {R"({"a": {}, "a": {}})", "a"},                      //
      {R"({"a": "a", "b": "{\"c\": 1, \"c\": 2}"})", ""},  // a string is no object
      {R"({"\u0061": 1, "a": 2})", "a"},                   // the same letter twice
      {R"({"a": 1, "a": 2)", ""},                          // no JSON
      {"", ""},
  };
  for (const auto& test : cases) EXPECT_EQ(repeated_json_key(test.text), test.key) << test.text;
}

// With the library's callbacks every object that ends walks the array around it: a minute here.
TEST(Nesting, KeysOfManyObjectsAreReadInLinearTime) {
  const std::string text = "[" + times(400'000, R"({"a": 1},)") + R"({"b": 1, "b": 2}])";
  const std::clock_t begin = std::clock();
  EXPECT_EQ(repeated_json_key(text), "b");
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 5);
}

TEST(Nesting, ProblemsOfJsonAreInPlainWords) {
  EXPECT_EQ(
      json_problem("[json.exception.parse_error.101] parse error at line 1, column 2: syntax "
                   "error while parsing object key - unexpected end of input; expected string "
                   "literal"),
      "line 1, column 2: unexpected end of input; expected string literal");
  EXPECT_EQ(json_problem("[json.exception.out_of_range.406] number overflow parsing '1e999'"),
            "number overflow parsing '1e999'");
  EXPECT_EQ(json_problem("other"), "other");
}

TEST(Nesting, JsonStringsDoNotNest) {
  EXPECT_FALSE(json_nests_deeper("\"" + times(50, "[") + "\""));
  EXPECT_FALSE(json_nests_deeper("[\"\\\"" + times(50, "[") + "\"]"));
  EXPECT_TRUE(json_nests_deeper("[\"\\\\\"" + times(50, "[")));
  EXPECT_FALSE(json_nests_deeper("\"open " + times(50, "[")));
}

TEST(Nesting, TomlKeysAtTheLimitAndAboveIt) {
  EXPECT_FALSE(toml_key_longer("a.b.c = 1", 3));
  EXPECT_TRUE(toml_key_longer("a.b.c.d = 1", 3));
  EXPECT_TRUE(toml_key_longer("[a.'b'.\"c\".d]", 3));
  EXPECT_TRUE(toml_key_longer("x = {a.b.c.d = 1}", 3));
  EXPECT_FALSE(toml_key_longer("a.b = 1.5\nc.d = [1.5, 2.5, 3.5]", 3));
}

TEST(Nesting, TomlStringsAndCommentsAreNoKeys) {
  const std::string dots = "a.b.c.d.e.f";
  EXPECT_FALSE(toml_key_longer("x = \"" + dots + "\"  # " + dots + "\ny = '" + dots + "'", 3));
  EXPECT_FALSE(toml_key_longer("x = \"\"\"\n" + dots + "\n\"\"\"", 3));
  EXPECT_FALSE(toml_key_longer("x = '''\n" + dots + "'''''\ny = 1", 3));
  // Behind a closing mark, and an apostrophe in a comment, keys count again.
  EXPECT_TRUE(toml_key_longer("x = {y = \"\"\"'\"\"\", " + dots + " = 1}", 3));
  EXPECT_TRUE(toml_key_longer("# don't\n" + dots + " = 1", 3));
  EXPECT_TRUE(toml_key_longer("x = 'a\\'\n" + dots + " = 1", 3));
}

}  // namespace
}  // namespace halfnote
