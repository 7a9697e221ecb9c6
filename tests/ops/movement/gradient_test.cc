// Gradient rules of the movement ops against central differences in f64, each with fixed sizes and
// with symbolic ones.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "compiler/ops/families.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

Tensor i64(Shape shape, std::initializer_list<int64_t> numbers) {
  return Tensor::of<int64_t>(std::move(shape), numbers);
}

Attribute word(const char* text) { return std::string(text); }
Attribute number(int64_t n) { return n; }

void expect_both(const GradientCase& test) {
  expect_scale_rule(test);
  expect_gradient(test, Dims::kFixed);
  expect_gradient(test, Dims::kSymbolic);
}

/// Also with its integer operands computed instead of constant.
void expect_all(GradientCase test) {
  expect_both(test);
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    if (test.inputs[i].defined() && !is_float(test.inputs[i].dtype())) test.computed.push_back(i);
  }
  test.name += ", operands computed";
  expect_gradient(test, Dims::kFixed);
}

TEST(MovementGradient, Identity) {
  expect_both({"matrix", "Identity", {}, {f64({2, 3})}});
  expect_both({"scalar", "Identity", {}, {f64({})}});
}

TEST(MovementGradient, Reshape) {
  expect_all({"joined", "Reshape", {}, {f64({2, 3, 4}), ints({6, 4})}});
  expect_both({"inferred", "Reshape", {}, {f64({2, 3, 4}), ints({-1, 2})}});
  expect_both({"copied", "Reshape", {}, {f64({2, 3, 4}), ints({0, 12})}});
  expect_both({"to scalar", "Reshape", {}, {f64({1, 1}), ints({})}});
  expect_both({"from scalar", "Reshape", {}, {f64({}), ints({1, 1})}});
  expect_both({"empty", "Reshape", {{"allowzero", number(1)}}, {f64({2, 0, 3}), ints({0, 5})}});
}

TEST(MovementGradient, Flatten) {
  for (int64_t axis : {-1, 0, 1, 2, 3}) {
    expect_both({std::to_string(axis), "Flatten", {{"axis", axis}}, {f64({2, 3, 5})}});
  }
}

TEST(MovementGradient, SqueezeAndUnsqueeze) {
  expect_all({"axes", "Squeeze", {}, {f64({1, 3, 1, 2}), ints({0, -2})}});
  expect_gradient({"all", "Squeeze", {}, {f64({1, 3, 1, 2})}}, Dims::kFixed);
  expect_both({"axes", "Unsqueeze", {}, {f64({3, 2}), ints({0, -1})}});
  expect_both({"scalar", "Unsqueeze", {}, {f64({}), ints({0})}});
  const Tensor one = Tensor::scalar<int64_t>(1);  // an axis as a number, which is no list
  expect_both({"axis", "Unsqueeze", {}, {f64({3, 2}), one}});
}

TEST(MovementGradient, Transpose) {
  expect_both({"reversed", "Transpose", {}, {f64({2, 3, 5})}});
  expect_both({"cycle", "Transpose", {{"perm", std::vector<int64_t>{1, 2, 0}}}, {f64({2, 3, 5})}});
  expect_both({"empty", "Transpose", {}, {f64({0, 3})}});
}

TEST(MovementGradient, Concat) {
  for (int64_t axis : {0, -2}) {
    expect_both({"three",
                 "Concat",
                 {{"axis", axis}},
                 {f64({2, 3}, 1), f64({1, 3}, 2), f64({4, 3}, 3)},
                 {0, 1, 2}});
  }
  expect_both({"an empty one",
               "Concat",
               {{"axis", number(1)}},
               {f64({2, 3}, 1), f64({2, 0}, 2), f64({2, 1}, 3)},
               {0, 1, 2}});
  expect_both({"single", "Concat", {{"axis", number(0)}}, {f64({2, 3})}});
  expect_both({"one needed", "Concat", {{"axis", number(0)}}, {f64({2}, 1), f64({3}, 2)}, {1}});
}

TEST(MovementGradient, Split) {
  GradientCase sizes{"sizes", "Split", {{"axis", number(1)}}, {f64({2, 6}), ints({1, 2, 3})}};
  sizes.outputs = 3;
  expect_both(sizes);
  sizes.silent = {1};
  expect_both(sizes);
  GradientCase even{
      "even", "Split", {{"axis", number(-2)}, {"num_outputs", number(2)}}, {f64({3, 2})}};
  even.outputs = 2;
  expect_gradient(even);
}

TEST(MovementGradient, Slice) {
  const Tensor x = f64({4, 5});
  expect_all({"both axes", "Slice", {}, {x, ints({1, 2}), ints({3, 4})}});
  expect_all({"one axis", "Slice", {}, {x, ints({1}), ints({4}), ints({1})}});
  expect_all({"from the end", "Slice", {}, {x, ints({-3}), ints({-1}), ints({-1})}});
  expect_all({"beyond the ends", "Slice", {}, {x, ints({-99}), ints({99}), ints({0})}});
  expect_all({"nothing", "Slice", {}, {x, ints({3}), ints({1}), ints({0})}});
  expect_all({"unit steps", "Slice", {}, {x, ints({1}), ints({4}), ints({1}), ints({1})}});
  expect_all({"steps", "Slice", {}, {x, ints({0}), ints({5}), ints({1}), ints({2})}});
  expect_all(
      {"backwards", "Slice", {}, {x, ints({-1, 3}), ints({-99, 0}), ints({1, 0}), ints({-1, -2})}});
  const auto steps = [&](std::string title, std::vector<int64_t> starts, std::vector<int64_t> ends,
                         std::vector<int64_t> axes, std::vector<int64_t> by) {
    expect_all(
        {std::move(title), "Slice", {}, {x, ints(starts), ints(ends), ints(axes), ints(by)}});
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = -kMost - 1;
  steps("turned", {-1}, {kLeast}, {1}, {-1});
  steps("both turned", {-1, -1}, {kLeast, kLeast}, {0, 1}, {-1, -1});
  steps("from inside", {1}, {kMost}, {-1}, {2});
  steps("up to inside", {0}, {4}, {1}, {3});
  steps("less than a step left", {0}, {kMost}, {0}, {3});
  steps("turned and far apart", {3}, {kLeast}, {1}, {-3});
  steps("one element of a huge step", {2, 1}, {kMost, kLeast}, {1, 0}, {kMost, -kMost});
  steps("several", {1, 4}, {kMost, kLeast}, {0, 1}, {2, -2});
  steps("nothing, backwards", {0}, {2}, {1}, {-1});
  expect_both(
      {"i32", "Slice", {}, {x, Tensor::of<int32_t>({1}, {1}), Tensor::of<int32_t>({1}, {3})}});
}

TEST(MovementGradient, PadWithAConstant) {
  const Tensor x = f64({3, 4});
  expect_all({"grows", "Pad", {}, {x, ints({1, 0, 2, 3})}});
  expect_all({"shrinks", "Pad", {}, {x, ints({-1, 0, 0, -2})}});
  expect_all({"grows and shrinks", "Pad", {}, {x, ints({2, -1, -1, 0})}});
  expect_all({"nothing", "Pad", {}, {x, ints({0, 0, 0, 0})}});
  expect_all({"axes", "Pad", {}, {x, ints({1, 2}), Tensor{}, ints({-1})}});
  expect_all({"empty", "Pad", {}, {f64({0, 2}), ints({1, 0, 1, 0})}});
}

TEST(MovementGradient, PadWithATrainedValue) {  // which carries no loss scale
  const Tensor value = Tensor::scalar<double>(0.7);
  const GradientCase test{"value", "Pad", {}, {f64({3, 4}), ints({1, 0, 2, 3}), value}, {0, 2}};
  expect_gradient(test, Dims::kFixed);
  expect_gradient(test, Dims::kSymbolic);
}

TEST(MovementGradient, PadWithItsOwnElements) {
  for (const char* mode : {"reflect", "edge", "wrap"}) {
    const Attributes attributes = {{"mode", word(mode)}};
    expect_all({mode, "Pad", attributes, {f64({3, 4}), ints({2, 1, 1, 3})}});
    expect_all({mode, "Pad", attributes, {f64({3, 4}), ints({1, 2}), Tensor{}, ints({1})}});
    // PyTorch's newer exporter writes a number for the border there too.
    expect_all({mode, "Pad", attributes, {f64({3, 4}), ints({2, 1, 1, 3}), f64({})}});
  }
}

TEST(MovementGradient, Expand) {
  expect_gradient({"rows", "Expand", {}, {f64({3}), ints({2, 3})}});
  expect_gradient({"columns", "Expand", {}, {f64({2, 1}), ints({2, 5})}});
  expect_gradient({"scalar", "Expand", {}, {f64({}), ints({2, 2})}});
  expect_gradient({"own shape wins", "Expand", {}, {f64({2, 3}), ints({1})}});
  expect_gradient({"to nothing", "Expand", {}, {f64({1, 3}), ints({0, 3})}});
}

TEST(MovementGradient, ExpandOfUnknownDim) {
  // A symbolic dim that meets 3 may be 1 or 3: whether it is summed is seen in the step.
  const GradientCase test{"symbolic", "Expand", {}, {f64({3}), ints({2, 3})}};
  expect_gradient(test, Dims::kSymbolic);
}

TEST(MovementGradient, Tile) {
  expect_all({"rows", "Tile", {}, {f64({2, 3}), ints({2, 1})}});
  expect_all({"both", "Tile", {}, {f64({2, 3}), ints({3, 2})}});
  expect_all({"once", "Tile", {}, {f64({2, 3}), ints({1, 1})}});
  expect_all({"never", "Tile", {}, {f64({2, 3}), ints({0, 1})}});
  expect_all({"empty", "Tile", {}, {f64({2, 0}), ints({2, 2})}});
  expect_all({"too many dims to split", "Tile", {}, {f64({1, 2, 1, 2, 1}), ints({2, 2, 2, 2, 2})}});
}

TEST(MovementGradient, Gather) {
  const Tensor x = f64({4, 3, 2});
  for (int64_t axis : {0, 1, -1}) {
    const Attributes attributes = {{"axis", axis}};
    const std::string name = "axis " + std::to_string(axis);
    expect_all({name, "Gather", attributes, {x, i64({2, 3}, {0, 1, 1, -1, 0, 1})}});
    expect_all({name + ", one", "Gather", attributes, {x, i64({}, {1})}});
    expect_all({name + ", the last", "Gather", attributes, {x, i64({}, {-1})}});
    expect_all({name + ", none", "Gather", attributes, {x, i64({0}, {})}});
    expect_all({name + ", i32", "Gather", attributes, {x, Tensor::of<int32_t>({2}, {1, 1})}});
  }
}

TEST(MovementGradient, GatherElements) {
  const Tensor x = f64({3, 4});
  expect_all({"rows", "GatherElements", {}, {x, i64({2, 4}, {0, 1, 1, 2, 0, -1, 1, 0})}});
  expect_all(
      {"columns", "GatherElements", {{"axis", number(1)}}, {x, i64({3, 2}, {0, 0, -1, 2, 1, 3})}});
  expect_all({"a part", "GatherElements", {{"axis", number(-1)}}, {x, i64({2, 1}, {3, 0})}});
}

TEST(MovementGradient, GatherND) {
  const Tensor x = f64({3, 4, 2});
  expect_all({"elements", "GatherND", {}, {x, i64({2, 3}, {0, 1, 1, 2, -1, 0})}});
  expect_all({"slices", "GatherND", {}, {x, i64({2, 2, 1}, {0, 1, 1, -1})}});
  expect_all(
      {"batch", "GatherND", {{"batch_dims", number(1)}}, {x, i64({3, 2}, {0, 1, 3, 0, 3, 0})}});
  expect_all({"batch of slices",
              "GatherND",
              {{"batch_dims", number(1)}},
              {x, i64({3, 2, 1}, {0, 0, 2, 1, 3, 3})}});
}

TEST(MovementGradient, ScatterElements) {
  const Tensor x = f64({3, 4}), updates = f64({2, 3}, 2);
  const Tensor indices = i64({2, 3}, {0, 1, 2, 2, 0, -2});
  expect_all({"none", "ScatterElements", {}, {x, indices, updates}, {0, 2}});
  const Tensor twice = i64({2, 3}, {0, 0, 1, 3, 3, -1});
  const Attributes add = {{"axis", number(1)}, {"reduction", word("add")}};
  expect_all({"add", "ScatterElements", add, {x, twice, updates}, {0, 2}});
}

TEST(MovementGradient, ScatterND) {
  const Tensor x = f64({3, 4});
  expect_all({"elements", "ScatterND", {}, {x, i64({2, 2}, {0, 1, -1, 3}), f64({2}, 2)}, {0, 2}});
  expect_all({"rows", "ScatterND", {}, {x, i64({2, 1}, {2, 0}), f64({2, 4}, 2)}, {0, 2}});
  const Attributes add = {{"reduction", word("add")}};
  expect_all({"add", "ScatterND", add, {x, i64({3, 1}, {2, 0, 2}), f64({3, 4}, 2)}, {0, 2}});
}

// Several updates of one element, and zeros among the factors of a product.
TEST(MovementGradient, ScatterWithOtherReductions) {
  const Tensor x = f64({3, 4}, 1);
  Tensor some_zeros = f64({3, 4}, 2), updates = f64({3, 4}, 3);
  for (int64_t i : {0, 5, 6}) some_zeros.mutable_data<double>()[static_cast<size_t>(i)] = 0;
  for (int64_t i : {1, 5, 8}) updates.mutable_data<double>()[static_cast<size_t>(i)] = 0;
  const Tensor rows = i64({3, 1}, {2, 0, 2});
  const Tensor places = i64({3, 4}, {0, 1, 1, 2, 1, 1, 0, -1, 2, 2, 2, 0});
  for (const char* reduction : {"max", "min"}) {
    const Attributes attributes = {{"reduction", word(reduction)}};
    expect_all({reduction, "ScatterND", attributes, {x, rows, f64({3, 4}, 4)}, {0, 2}});
    expect_all({reduction, "ScatterElements", attributes, {x, places, f64({3, 4}, 5)}, {0, 2}});
  }
  const Attributes product = {{"reduction", word("mul")}};
  for (const Dims dims : {Dims::kFixed, Dims::kSymbolic}) {
    expect_gradient({"mul", "ScatterND", product, {x, rows, f64({3, 4}, 4)}, {0, 2}}, dims);
    expect_gradient({"zeros", "ScatterND", product, {some_zeros, rows, updates}, {0, 2}}, dims);
    expect_gradient({"mul", "ScatterElements", product, {x, places, updates}, {0, 2}}, dims);
    expect_gradient({"zeros", "ScatterElements", product, {some_zeros, places, updates}, {0, 2}},
                    dims);
  }
}

TEST(MovementGradient, DepthAndSpace) {
  for (const char* mode : {"DCR", "CRD"}) {
    const Attributes attributes = {{"blocksize", number(2)}, {"mode", word(mode)}};
    expect_both({mode, "DepthToSpace", attributes, {f64({2, 12, 2, 3})}});
  }
  expect_both({"blocks", "SpaceToDepth", {{"blocksize", number(2)}}, {f64({2, 3, 4, 6})}});
}

TEST(MovementGradient, Trilu) {
  const Tensor x = f64({2, 3, 4});
  for (int64_t upper : {0, 1}) {
    const Attributes attributes = {{"upper", upper}};
    expect_both({"diagonal", "Trilu", attributes, {x}});
    for (int64_t k : {-9, -1, 1, 9}) {
      expect_all({std::to_string(k), "Trilu", attributes, {x, i64({}, {k})}});
    }
  }
}

TEST(MovementGradient, ReverseSequence) {
  const Tensor lengths = i64({3}, {1, 4, 2});
  expect_all({"time first", "ReverseSequence", {}, {f64({4, 3, 2}), lengths}});
  expect_all({"batch first",
              "ReverseSequence",
              {{"batch_axis", number(0)}, {"time_axis", number(1)}},
              {f64({3, 4, 2}), lengths}});
}

TEST(MovementGradient, OneHot) {
  const Tensor indices = Tensor::of<int64_t>({2, 3}, {0, 3, -1, 2, 2, 7});  // 7 is out of range
  const Tensor depth = Tensor::scalar<int64_t>(4);
  const Tensor values = random_tensor(DType::kF64, {2}, 1);
  for (int64_t axis : {-1, 0, 1}) {
    const GradientCase test{"axis", "OneHot", {{"axis", axis}}, {indices, depth, values}, {2}};
    expect_gradient(test);
  }
}

TEST(MovementGradient, EyeLikeReadsNoValues) {
  expect_gradient({"eye", "EyeLike", {{"k", int64_t{1}}}, {f64({3, 4}, 1)}});
}

TEST(MovementGradient, EveryRuleIsTested) {
  const std::set<std::string_view> kTested = {
      "Concat",    "DepthToSpace",   "Expand",          "EyeLike",         "Flatten",
      "Gather",    "GatherElements", "GatherND",        "Identity",        "OneHot",
      "Pad",       "Reshape",        "ReverseSequence", "ScatterElements", "ScatterND",
      "Slice",     "SpaceToDepth",   "Split",           "Squeeze",         "Tile",
      "Transpose", "Trilu",          "Unsqueeze"};
  std::set<std::string_view> rules;
  for (const OperatorRow& row : movement_rows()) {
    if (row.gradient != nullptr) rules.insert(row.name);
  }
  EXPECT_EQ(rules, kTested);
}

}  // namespace
}  // namespace halfnote::test
