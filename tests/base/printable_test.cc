// What a name from a file may show, and what it may not.
#include "base/text/printable.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace halfnote {
namespace {

TEST(Printable, LeavesTextAndEscapesWhatSteersATerminal) {
  using std::string_view_literals::operator""sv;
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", ""},
      {"block.0/conv weight \"x\" \\n", "block.0/conv weight \"x\" \\n"},
      {"größe ✓ 漢字 🙂", "größe ✓ 漢字 🙂"},
      {"\x1b[2J\0\x7f\r\n\t"sv, "\\x1b[2J\\x00\\x7f\\x0d\\x0a\\x09"},
      {"\xc2\x9b"  // CSI as one character of C1
       "31m",
       "\\xc2\\x9b31m"},
      {"a\xe2\x80\xae"  // the rest runs from right to left
       "b",
       "a\\xe2\\x80\\xaeb"},
      {"a\xe2\x81\xa6z", "a\\xe2\\x81\\xa6z"},
      {"\xff\xc3", "\\xff\\xc3"},                    // no UTF-8, and a cut character
      {"\xc0\xaf", "\\xc0\\xaf"},                    // `/` in two bytes
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // half of a surrogate pair
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // behind the last character
  };
  for (const auto& [text, shown] : cases) EXPECT_EQ(printable(text), shown);
}

TEST(Printable, GivesAPrintableText) {
  std::string every;
  for (int i = 0; i < 65536; ++i) every += {static_cast<char>(i >> 8), static_cast<char>(i)};
  const std::string shown = printable(every);
  EXPECT_EQ(printable(shown), shown);
  for (const char c : shown) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

TEST(Printable, LongWordsAreCutBetweenCharacters) {
  const std::string longest(kLongestWord, 'x');
  EXPECT_EQ(with_short_words("a " + longest + "\n b"), "a " + longest + "\n b");
  EXPECT_EQ(with_short_words(""), "");
  const std::string cut = with_short_words("key \"" + std::string(1'000'000, 'y') + "\": no");
  EXPECT_EQ(cut.substr(0, 7), "key \"yy");
  EXPECT_NE(cut.find("…(1000003 bytes)…yy"), std::string::npos);
  EXPECT_EQ(cut.substr(cut.size() - 6), "y\": no");
  EXPECT_LT(cut.size(), 600u);
  std::string umlauts;
  for (int i = 0; i < 1000; ++i) umlauts += "ö";
  const std::string one = with_short_words("x" + umlauts);
  EXPECT_EQ(printable(one), one) << "halves of characters";
}

}  // namespace
}  // namespace halfnote
