// The interpreter: control flow, containers, strings, shapes that depend on data, function bodies.
#include "runtime/core/interpret/interpreter.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "runtime/core/interpret/pieces.h"

namespace halfnote {
namespace {

std::vector<Datum> run(const std::string& text, const std::vector<Datum>& inputs) {
  const Graph graph = parse_graph(text, "test");
  return Interpreter(graph).run(inputs);
}

std::vector<float> floats(const Datum& datum) {
  EXPECT_TRUE(datum.is_tensor());
  const auto data = datum.tensor.data<float>();
  return {data.begin(), data.end()};
}

Tensor vector(std::initializer_list<float> numbers) {
  return Tensor::of<float>({static_cast<int64_t>(numbers.size())}, numbers);
}

ErrorCode code_of(const std::string& text, const std::vector<Datum>& inputs) {
  try {
    run(text, inputs);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

constexpr const char* kIf = R"(main (bool c, float[2] x) => (y) {
  y = If <then_branch = t () => (a) { a = Neg (x) }, else_branch = e () => (b) { b = Add (x, x) }> (c)
})";

TEST(Interpreter, IfRunsOneBranchAndSeesWhatIsOutside) {
  EXPECT_EQ(floats(run(kIf, {Tensor::scalar<bool>(true), vector({1, 2})})[0]),
            (std::vector<float>{-1, -2}));
  EXPECT_EQ(floats(run(kIf, {Tensor::scalar<bool>(false), vector({1, 2})})[0]),
            (std::vector<float>{2, 4}));
  EXPECT_EQ(code_of(kIf, {vector({1}), vector({1, 2})}), ErrorCode::kData) << "no bool";
}

constexpr const char* kLoop = R"(main (int64 trips, bool go, float[1] start) => (last, all) {
  last, all = Loop <body = b (int64 i, bool c, float[1] s) => (c2, s2, seen) {
    s2 = Add (s, s)
    seen = Identity (s)
    limit = Constant <value = float[1] {8.0}> ()
    less = Less (s2, limit)
    none = Constant <value = int64[0] {}> ()
    c2 = Reshape (less, none)
  }> (trips, go, start)
})";

TEST(Interpreter, LoopEndsByCountOrCondition) {
  const auto by_count =
      run(kLoop, {Tensor::scalar<int64_t>(2), Tensor::scalar<bool>(true), vector({1})});
  EXPECT_EQ(floats(by_count[0]), (std::vector<float>{4}));
  EXPECT_EQ(floats(by_count[1]), (std::vector<float>{1, 2}));
  EXPECT_EQ(by_count[1].tensor.shape(), (Shape{2, 1}));
  const auto by_condition =
      run(kLoop, {Tensor::scalar<int64_t>(9), Tensor::scalar<bool>(true), vector({1})});
  EXPECT_EQ(floats(by_condition[0]), (std::vector<float>{8}));
  const auto none =
      run(kLoop, {Tensor::scalar<int64_t>(9), Tensor::scalar<bool>(false), vector({1})});
  EXPECT_EQ(floats(none[0]), (std::vector<float>{1}));
  EXPECT_EQ(none[1].tensor.shape()[0], 0);
}

TEST(Interpreter, LoopGivesItsNumbersTheDeclaredAxis) {
  const std::string text = R"(main (int64 trips) => (last) {
    none = Constant <value = int64[0] {}> ()
    last = Loop <body = b (int64[1] i, bool[1] c, int64[0] s) => (c, s2) {
      s2 = Concat <axis = 0> (s, i)
    }> (trips, , none)
  })";
  const auto results = run(text, {Tensor::scalar<int64_t>(3)});
  EXPECT_EQ(results[0].tensor.shape(), (Shape{3}));
  EXPECT_EQ(results[0].tensor.to_ints(), (std::vector<int64_t>{0, 1, 2}));
}

TEST(Interpreter, ScanGoesAlongAnyAxisBothWays) {
  const std::string text = R"(main (float[1] start, float[2,3] x) => (sum, seen) {
    sum, seen = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                      scan_output_axes = [1],
                      body = b (float[1] s, float[2] row) => (s2, out) {
      axes = Constant <value = int64[1] {0}> ()
      here = ReduceSum <keepdims = 1> (row, axes)
      s2 = Add (s, here)
      out = Add (row, s)
    }> (start, x)
  })";
  const Tensor x = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const auto results = run(text, {vector({0}), x});
  EXPECT_EQ(floats(results[0]), (std::vector<float>{21}));
  // Columns from the last to the first, each with the sum of those before it.
  EXPECT_EQ(results[1].tensor.shape(), (Shape{2, 3}));
  EXPECT_EQ(floats(results[1]), (std::vector<float>{3, 11, 17, 6, 14, 20}));
}

TEST(Interpreter, SequencesAreBuiltCutAndJoined) {
  const std::string text = R"(main (float[2] a, float[3] b) => (whole, count, last) {
    first = Constant <value = int64 {0}> ()
    s = SequenceConstruct (a)
    longer = SequenceInsert (s, b, first)
    whole = ConcatFromSequence <axis = 0> (longer)
    count = SequenceLength (longer)
    shorter = SequenceErase (longer)
    last = SequenceAt (shorter, first)
  })";
  const auto results = run(text, {vector({1, 2}), vector({3, 4, 5})});
  EXPECT_EQ(floats(results[0]), (std::vector<float>{3, 4, 5, 1, 2}));
  EXPECT_EQ(results[1].tensor.at_as_int(0), 2);
  EXPECT_EQ(floats(results[2]), (std::vector<float>{3, 4, 5}));
}

TEST(Interpreter, APositionOutsideOfASequenceIsAnError) {
  const std::string text = R"(main (float[2] a) => (y) {
    two = Constant <value = int64 {2}> ()
    s = SequenceConstruct (a, a)
    y = SequenceAt (s, two)
  })";
  EXPECT_EQ(code_of(text, {vector({1, 2})}), ErrorCode::kData);
}

TEST(Interpreter, OptionalValuesMayBeEmpty) {
  const std::string text = R"(main (float[1] x) => (has, value) {
    o = Optional (x)
    has = OptionalHasElement (o)
    value = OptionalGetElement (o)
  })";
  const auto results = run(text, {vector({5})});
  EXPECT_EQ(results[0].tensor.at_as_int(0), 1);
  EXPECT_EQ(floats(results[1]), (std::vector<float>{5}));
}

TEST(Interpreter, ShapesMayDependOnData) {
  const std::string text = R"(main (float[N] x) => (y) {
    where = NonZero (x)
    flat = Constant <value = int64[1] {-1}> ()
    index = Reshape (where, flat)
    y = Gather (x, index)
  })";
  EXPECT_EQ(floats(run(text, {vector({0, 3, 0, 4})})[0]), (std::vector<float>{3, 4}));
}

TEST(Interpreter, AnOpWithoutKernelRunsAsItsBody) {
  const std::string text = R"(main (int64 size) => (y) { y = HannWindow (size) })";
  const auto results = run(text, {Tensor::scalar<int64_t>(4)});
  ASSERT_EQ(results[0].tensor.shape(), (Shape{4}));
  // sin²(πi/4) up to the rounding of the f32 functions in the body.
  const double wanted[] = {0, 0.5, 1, 0.5};
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(results[0].tensor.at_as_double(i), wanted[i], 4 * 1.2e-7);
}

TEST(Interpreter, NamesTheNodeThatFailed) {
  try {
    run("main (float[2] x) => (y) { [here] y = ImageDecoder (x) }", {vector({1, 2})});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.place().node, "here");
  }
}

TEST(Pieces, KeepStrings) {
  const Tensor words = Tensor::strings({2, 2}, {"a", "b", "c", "d"});
  EXPECT_EQ(take_along(words, 1, 1).string_data(), (std::vector<std::string>{"b", "d"}));
  const std::vector<Tensor> parts = {slice_along(words, 1, 1, 2), slice_along(words, 1, 0, 1)};
  EXPECT_EQ(concat_along(parts, 1).string_data(), (std::vector<std::string>{"b", "a", "d", "c"}));
  EXPECT_EQ(stack_along(parts, 0).shape(), (Shape{2, 2, 1}));
  const std::vector<Tensor> uneven = {vector({1}), words};
  EXPECT_THROW(concat_along(uneven, 0), Error);
}

}  // namespace
}  // namespace halfnote
