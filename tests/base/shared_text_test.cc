#include "base/text/shared_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>
#include <vector>

namespace halfnote {
namespace {

TEST(SharedText, IsTheTextThatItWasMadeOf) {
  const SharedText none, relu("Relu"), again = std::string("Relu"), other = std::string_view("Add");
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none, "");
  EXPECT_EQ(SharedText(""), none);
  EXPECT_EQ(relu, "Relu");
  EXPECT_EQ(relu, std::string("Relu"));
  EXPECT_EQ(relu, again);
  EXPECT_NE(relu, other);
  EXPECT_LT(other, relu);
  EXPECT_EQ(relu.size(), 4u);
  EXPECT_TRUE(relu.starts_with("Re"));
  EXPECT_EQ(relu.substr(2), "lu");
  EXPECT_EQ("a." + relu + ".b", "a.Relu.b");
  EXPECT_EQ(relu + other, "ReluAdd");
  EXPECT_EQ(fmt::format("{:>6}", relu), "  Relu");
  EXPECT_EQ((std::set<std::string>{"Relu"}.contains(relu)), true);
}

TEST(SharedText, CopiesShareOneText) {
  for (const size_t length : {4, 127, 128, 129, 5000}) {
    const SharedText text(std::string(length, 'x'));
    SharedText copy = text, moved = std::move(copy);
    EXPECT_EQ(&moved.str(), &text.str());
    EXPECT_TRUE(copy.empty());  // NOLINT(bugprone-use-after-move): it is the empty text
    moved = moved;              // NOLINT: of itself
    EXPECT_EQ(moved, text);
    moved = "other";
    EXPECT_EQ(text.size(), length);
  }
}

TEST(SharedText, OutlivesTheThreadThatMadeIt) {
  std::vector<SharedText> made(4);
  std::vector<std::thread> threads;
  for (SharedText& text : made) threads.emplace_back([&text] { text = "ai.halfnote"; });
  for (std::thread& thread : threads) thread.join();
  for (const SharedText& text : made) EXPECT_EQ(text, "ai.halfnote");
}

TEST(SharedText, ManyTextsKeepApart) {
  std::map<int, SharedText> texts;
  for (int i = 0; i < 5000; ++i) texts[i] = std::to_string(i % 1700);
  for (const auto& [i, text] : texts) EXPECT_EQ(text, std::to_string(i % 1700));
}

}  // namespace
}  // namespace halfnote
