// The containers of the graph against those of the standard library.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "compiler/ir/store/name_index.h"
#include "compiler/ir/store/small_list.h"
#include "compiler/ir/store/stable_array.h"

namespace halfnote {
namespace {

using List = SmallList<uint32_t, 3>;

std::vector<uint32_t> elements(const List& list) { return {list.begin(), list.end()}; }

List counted(uint32_t count) {
  List list;
  for (uint32_t i = 0; i < count; ++i) list.push_back(i * 7);
  return list;
}

TEST(SmallList, HoldsWhatAVectorHolds) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    List list;
    std::vector<uint32_t> expected;
    for (int step = 0; step < 60; ++step) {
      const uint32_t what = random() % 16;
      if (what < 9) {
        list.push_back(what + static_cast<uint32_t>(step));
        expected.push_back(what + static_cast<uint32_t>(step));
      } else if (what < 15 && !expected.empty()) {
        EXPECT_EQ(list.back(), expected.back());
        list.pop_back();
        expected.pop_back();
      } else if (what == 15) {
        list.clear();
        expected.clear();
      }
      ASSERT_EQ(elements(list), expected);
    }
  }
}

TEST(SmallList, CopiesAndMovesOnBothSidesOfItsRoom) {
  for (uint32_t from = 0; from < 9; ++from) {
    for (uint32_t to = 0; to < 9; ++to) {
      const List source = counted(from);
      List copy = counted(to);
      copy = source;
      EXPECT_EQ(elements(copy), elements(source));
      copy.push_back(5);
      EXPECT_EQ(elements(source), elements(counted(from)));  // they share nothing
      List moved = counted(to), given = source;
      moved = std::move(given);
      EXPECT_EQ(elements(moved), elements(source));
      given = counted(to);  // can be used again
      EXPECT_EQ(elements(given), elements(counted(to)));
    }
  }
  List same = counted(6);
  const List& alias = same;
  same = alias;
  EXPECT_EQ(elements(same), elements(counted(6)));
}

TEST(StableArray, ReferencesStayWhileItGrows) {
  StableArray<std::string> array;
  std::vector<const std::string*> places;
  for (int i = 0; i < 1000; ++i) places.push_back(&array.emplace_back(std::to_string(i)));
  ASSERT_EQ(array.size(), 1000u);
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(places[i], &array[i]);
    EXPECT_EQ(array[i], std::to_string(i));
  }
}

TEST(StableArray, CopiesAndMoves) {
  StableArray<std::string> array;
  for (int i = 0; i < 130; ++i) array.emplace_back(std::to_string(i));
  StableArray<std::string> copy = array;
  copy[129] = "other";
  EXPECT_EQ(array[129], "129");
  const std::string* const place = &array[64];
  StableArray<std::string> moved = std::move(array);
  EXPECT_EQ(&moved[64], place);
  array = copy;  // can be used again
  EXPECT_EQ(array[129], "other");
  array.emplace_back("more");
  EXPECT_EQ(array.size(), 131u);
  EXPECT_EQ(copy.size(), 130u);
}

TEST(NameIndex, FindsWhatAMapFinds) {
  std::mt19937 random(2);
  NameIndex index;
  std::vector<std::string> names;  // by value
  std::unordered_map<std::string, uint32_t> expected;
  const auto name_of = [&](ValueId id) -> std::string_view { return names[id.index]; };
  for (int step = 0; step < 20000; ++step) {
    const std::string name = "v" + std::to_string(random() % 700);
    const auto found = expected.find(name);
    if (found == expected.end()) {
      const auto id = static_cast<uint32_t>(names.size());
      names.push_back(name);
      index.insert(name, ValueId{id});
      expected.emplace(name, id);
    } else if (random() % 3 != 0) {
      ASSERT_EQ(index.find(name, name_of).index, found->second);
    } else {
      index.erase(name, ValueId{found->second});
      expected.erase(found);
    }
    ASSERT_EQ(index.size(), expected.size());
  }
  for (int i = 0; i < 700; ++i) {
    const std::string name = "v" + std::to_string(i);
    const auto found = expected.find(name);
    EXPECT_EQ(index.find(name, name_of),
              found == expected.end() ? ValueId{} : ValueId{found->second});
  }
}

TEST(NameIndex, ErasesNothingThatItDoesNotHold) {
  NameIndex index;
  const auto name_of = [](ValueId) -> std::string_view { return "a"; };
  index.erase("a", ValueId{0});
  EXPECT_FALSE(index.find("a", name_of).valid());
  index.insert("a", ValueId{0});
  index.erase("b", ValueId{0});
  index.erase("a", ValueId{1});
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.find("a", name_of), ValueId{0});
}

}  // namespace
}  // namespace halfnote
