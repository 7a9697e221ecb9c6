// The body of Patches against its kernel: windows apart and overlapping, padded, that leave
// elements out, that see nothing.
#include <gtest/gtest.h>

#include <string_view>

#include "base/error.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"

namespace halfnote::test {
namespace {

using Ints = std::vector<int64_t>;

struct PatchesBody {
  const char* name;
  Shape x;
  int64_t channels;
  Attributes attributes;
};

const PatchesBody kPatchesBodies[] = {
    {"apart", {2, 3, 6, 4}, 16, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}},
    {"overlapping and padded",
     {2, 3, 5, 4},
     32,
     {{"kernel_shape", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}}},
    {"asymmetric, with a rest that no window reaches",
     {1, 2, 8, 7},
     12,
     {{"kernel_shape", Ints{2, 3}}, {"strides", Ints{3, 2}}, {"pads", Ints{0, 2, 1, 0}}}},
    {"one dim", {3, 1, 9}, 8, {{"kernel_shape", Ints{5}}, {"strides", Ints{2}}}},
    {"three dims",
     {1, 2, 4, 3, 5},
     24,
     {{"kernel_shape", Ints{2, 2, 3}},
      {"strides", Ints{2, 1, 1}},
      {"pads", Ints{1, 0, 0, 1, 0, 2}}}},
    {"of one element", {2, 4, 3, 3}, 8, {{"kernel_shape", Ints{1, 1}}}},
    {"no images", {0, 3, 4, 4}, 16, {{"kernel_shape", Ints{2, 2}}}},
    {"larger than the image", {1, 2, 2, 3}, 24, {{"kernel_shape", Ints{3, 4}}}},
};

TEST(MovementBody, Patches) {
  for (const PatchesBody& body : kPatchesBodies) {
    for (const DType from : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      for (const DType to : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
        if ((from == DType::kF64) != (to == DType::kF64)) continue;
        Attributes attributes = body.attributes;
        attributes.set("channels", body.channels);
        if (from != to) attributes.set("out_dtype", static_cast<int64_t>(to));
        expect_body_agrees({body.name, "Patches", attributes, {random_tensor(from, body.x, 1)}}, 0);
      }
    }
  }
}

/// Is the call refused, with these words?
bool is_refused(const Shape& x, const Attributes& attributes, std::string_view words) {
  try {
    graph_of({"refused", "Patches", attributes, {random_tensor(DType::kF32, x, 1)}});
  } catch (const Error& error) {
    return error.code() == ErrorCode::kModel &&
           std::string_view(error.what()).find(words) != std::string_view::npos;
  }
  return false;
}

TEST(MovementBody, PatchesThatDoNotFitAreRefused) {
  const Shape x{1, 3, 4, 4};
  const Attributes square = {{"kernel_shape", Ints{2, 2}}};
  const auto with = [&](const char* name, Attribute value, int64_t channels = 16) {
    Attributes attributes = square;
    attributes.set("channels", channels);
    attributes.set(name, std::move(value));
    return attributes;
  };
  EXPECT_TRUE(is_refused(x, square, "too few channels"));
  EXPECT_TRUE(is_refused(x, with("channels", int64_t{11}), "too few channels"));
  EXPECT_FALSE(is_refused(x, with("channels", int64_t{12}), ""));
  EXPECT_TRUE(is_refused(x, with("kernel_shape", Ints{2}), "windows"));
  EXPECT_TRUE(is_refused(x, with("strides", Ints{1, 0}), "windows"));
  EXPECT_TRUE(is_refused(x, with("pads", Ints{0, 0, 0, -1}), "windows"));
  EXPECT_TRUE(is_refused({3, 4}, with("kernel_shape", Ints{}), "windows"));
}

TEST(MovementBody, AddStrided) {
  struct Case {
    const char* name;
    Shape x, part;
    Ints strides;
  };
  const Case cases[] = {{"square", {2, 3, 5, 6}, {2, 3, 3, 3}, {2, 2}},
                        {"one dim", {1, 2, 7}, {1, 2, 3}, {3}},
                        {"longer than the image", {2, 1, 3, 4}, {2, 1, 1, 4}, {9, 1}},
                        {"3-D", {1, 2, 3, 4, 5}, {1, 2, 2, 4, 2}, {2, 1, 3}},
                        {"no step", {1, 2, 3}, {1, 2, 3}, {1}}};
  for (const Case& c : cases) {
    for (const DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      const Tensor x = random_tensor(type, c.x, 1), part = random_tensor(type, c.part, 2);
      expect_body_agrees({c.name, "AddStrided", {{"strides", c.strides}}, {x, part}}, 0);
    }
  }
  const Tensor x = random_tensor(DType::kF32, {1, 2, 5}, 1),
               part = random_tensor(DType::kF32, {1, 2, 2}, 2);
  EXPECT_THROW(graph_of({"too small", "AddStrided", {{"strides", Ints{2}}}, {x, part}}), Error);
  EXPECT_THROW(graph_of({"too many", "AddStrided", {{"strides", Ints{3, 1}}}, {x, part}}), Error);
}

TEST(MovementBody, EveryBodyIsTested) {
  EXPECT_EQ(with_body(movement_rows()), (std::set<std::string>{"AddStrided", "Patches"}));
}

}  // namespace
}  // namespace halfnote::test
