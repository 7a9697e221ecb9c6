// The body of Patches against its kernel: windows apart and overlapping, padded, that leave
// elements out, that see nothing.
#include <gtest/gtest.h>

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

TEST(MovementBody, EveryBodyIsTested) {
  EXPECT_EQ(with_body(movement_rows()), std::set<std::string>{"Patches"});
}

}  // namespace
}  // namespace halfnote::test
