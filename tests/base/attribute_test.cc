// Attributes: always in one order, equal byte for byte, strict about types.
#include "base/attribute.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace halfnote {
namespace {

std::string names(const Attributes& attributes) {
  std::string result;
  for (const auto& [name, value] : attributes) result += name + " ";
  return result;
}

TEST(AttributeMap, KeepsNamesSorted) {
  Attributes attributes{{"to", int64_t{1}}, {"axis", int64_t{2}}, {"mode", std::string("x")}};
  attributes.set("alpha", 0.5f);
  EXPECT_EQ(names(attributes), "alpha axis mode to ");
  attributes.set("axis", int64_t{7});
  EXPECT_EQ(attributes.size(), 4u);
  EXPECT_EQ(attributes.get_int("axis", 0), 7);
  attributes.erase("axis");
  attributes.erase("absent");
  EXPECT_EQ(names(attributes), "alpha mode to ");
  EXPECT_EQ(attributes.find("axis"), nullptr);
  EXPECT_TRUE(attributes.has("to"));
  EXPECT_TRUE(Attributes().empty());
}

TEST(AttributeMap, GivesValuesOrTheFallback) {
  const Attributes attributes{{"i", int64_t{3}},
                              {"f", 2.5f},
                              {"s", std::string("text")},
                              {"is", std::vector<int64_t>{1, 2}},
                              {"fs", std::vector<float>{0.5f}}};
  EXPECT_EQ(attributes.get_int("i", 0), 3);
  EXPECT_EQ(attributes.get_float("f", 0), 2.5f);
  EXPECT_EQ(attributes.get_string("s", ""), "text");
  EXPECT_EQ(attributes.get_ints("is"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(attributes.get_floats("fs"), std::vector<float>{0.5f});
  EXPECT_EQ(attributes.get_int("none", -1), -1);
  EXPECT_EQ(attributes.get_float("none", 1.5f), 1.5f);
  EXPECT_EQ(attributes.get_string("none", "NOTSET"), "NOTSET");
  EXPECT_EQ(attributes.get_ints("none", {4}), std::vector<int64_t>{4});
  EXPECT_EQ(attributes.get_floats("none"), std::vector<float>{});
}

TEST(AttributeMap, RefusesTheWrongType) {
  const std::pair<Attribute, const char*> values[] = {
      {2.5f, "a float"},
      {std::string("x"), "a string"},
      {Tensor::scalar(1.0f), "a tensor"},
      {RegionId{0}, "a graph"},
      {ValueType::tensor(DType::kF32), "a type"},
      {std::vector<int64_t>{1}, "ints"},
      {std::vector<float>{1}, "floats"},
      {std::vector<std::string>{"x"}, "strings"},
      {std::vector<Tensor>{}, "a tensor list"},
      {std::vector<RegionId>{}, "a list of graphs"},
      {AttributeReference{"alpha", 2}, "a reference"}};
  for (const auto& [value, kind] : values) {
    const Attributes attributes{{"axis", value}};
    try {
      attributes.get_int("axis", 0);
      ADD_FAILURE() << kind << " was taken for an int";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kModel);
      EXPECT_EQ(error.what(),
                "attribute \"axis\" has the wrong type: expected an int, got " + std::string(kind));
    }
  }
  const Attributes attributes{{"axis", int64_t{1}}};
  EXPECT_THROW(attributes.get_float("axis", 0), Error);
  EXPECT_THROW(attributes.get_string("axis", ""), Error);
  EXPECT_THROW(attributes.get_ints("axis"), Error);
  EXPECT_THROW(attributes.get_floats("axis"), Error);
}

/// One of each alternative, no two equal.
std::vector<Attribute> distinct() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return {int64_t{1},
          int64_t{2},
          1.0f,
          0.0f,
          -0.0f,
          nan,
          std::string("1"),
          std::string(),
          Tensor::scalar(1.0f),
          Tensor::scalar(-0.0f),
          Tensor::scalar(0.0f),
          Tensor::of<float>({1}, {1.0f}),
          RegionId{0},
          RegionId{1},
          RegionId{},
          ValueType::tensor(DType::kF32),
          ValueType::tensor(DType::kF32, {}),
          std::vector<int64_t>{1},
          std::vector<int64_t>{},
          std::vector<float>{0.0f},
          std::vector<float>{-0.0f},
          std::vector<float>{nan},
          std::vector<float>{},
          std::vector<std::string>{"1"},
          std::vector<std::string>{},
          std::vector<Tensor>{Tensor::scalar(1.0f)},
          std::vector<Tensor>{},
          std::vector<RegionId>{RegionId{0}},
          std::vector<RegionId>{},
          AttributeReference{"a", 1},
          AttributeReference{"a", 2}};
}

TEST(AttributeEquality, IsByteWise) {
  const std::vector<Attribute> a = distinct(), b = distinct();
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) EXPECT_EQ(equal(a[i], b[j]), i == j) << i << " " << j;
  }
}

TEST(AttributeEquality, ComparesNamesToo) {
  const Attributes a{{"x", int64_t{1}}, {"y", 2.0f}}, b{{"y", 2.0f}, {"x", int64_t{1}}};
  EXPECT_TRUE(a == b);
  EXPECT_FALSE(a == (Attributes{{"x", int64_t{1}}}));
  EXPECT_FALSE(a == (Attributes{{"x", int64_t{1}}, {"z", 2.0f}}));
  EXPECT_FALSE(a == (Attributes{{"x", int64_t{1}}, {"y", 2.5f}}));
}

}  // namespace
}  // namespace halfnote
