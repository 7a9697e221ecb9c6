// What a program counts of its scores is what the host counts of them.
#include "runtime/train/labels/count_correct.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compiler/ir/text.h"
#include "passes/canonical/infer_shapes.h"
#include "runtime/core/evaluate.h"

namespace halfnote {
namespace {

/// Numbers from `low` on, below `high`, the same ones for the same seed.
Tensor random_ints(const Shape& shape, uint64_t seed, int64_t low, int64_t high) {
  Tensor numbers(DType::kI64, shape);
  uint64_t word = seed;
  for (int64_t& number : numbers.mutable_data<int64_t>()) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    number = low + static_cast<int64_t>((word >> 33) % static_cast<uint64_t>(high - low));
  }
  return numbers;
}

Graph typed_graph(const std::string& text) {
  Graph graph = parse_graph(text, "test");
  infer_graph(graph);
  return graph;
}

/// Counts the scores `s` of a graph against its input `y`, in the graph and on the host.
void expect_counts(const std::string& text, const std::vector<Tensor>& inputs,
                   const Classification& kind, Scores scores = Scores::kStay) {
  SCOPED_TRACE(text);
  Graph graph = typed_graph(text);
  const size_t shown = graph.outputs().size();
  const Tensor of = evaluate(graph, inputs)[1];
  const auto shape = count_correct(graph, kind, scores, Places::kFive);
  ASSERT_TRUE(shape);
  EXPECT_EQ(*shape, of.shape());
  const std::vector<Tensor> outputs = evaluate(graph, inputs);
  const size_t first = scores == Scores::kStay ? shown : shown - 1;
  ASSERT_EQ(outputs.size(), first + 3);
  for (const int threads : {1, 3}) {
    const auto wanted = count_scores(kind, of, inputs[1], std::numeric_limits<int64_t>::max(),
                                     ScoreLoss::kSkip, threads);
    ASSERT_TRUE(wanted);
    EXPECT_EQ(outputs[first].at_as_int(0), wanted->top1);
    EXPECT_EQ(outputs[first + 1].at_as_int(0), wanted->labels);
    EXPECT_EQ(outputs[first + 2].at_as_int(0), wanted->top5);
  }
}

/// Few values, so that many are equal, and each 31st one odd.
Tensor odd_scores(const Shape& shape, uint64_t seed) {
  const float inf = std::numeric_limits<float>::infinity();
  const float odd[] = {std::nanf(""), inf, -inf};
  Tensor scores = random_ints(shape, seed, -3, 4).cast_to(DType::kF32);
  const auto data = scores.mutable_data<float>();
  for (size_t i = seed; i < data.size(); i += 31) data[i] = odd[i % 3];
  return scores;
}

/// Classes, and every third label ignored.
Tensor some_labels(const Shape& shape, int64_t classes) {
  Tensor labels = random_ints(shape, 7, 0, classes);
  const auto data = labels.mutable_data<int64_t>();
  for (size_t i = 0; i < data.size(); i += 3) data[i] = -100;
  return labels;
}

constexpr std::string_view kDTypes[] = {"float", "double", "float16", "bfloat16"};
constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};

TEST(CountCorrect, CountsRowsOfEveryTypeAsTheHostDoes) {
  const Classification kind = {.scores = "s", .labels = "y", .ignore_index = -100};
  for (size_t type = 0; type < 4; ++type) {
    for (const int64_t classes : {1, 2, 4, 5, 6, 70, 1000}) {
      const std::string c = std::to_string(classes), t(kDTypes[type]);
      const std::string text = "g (" + t + "[37," + c + "] x, int64[37] y) => (" + t + "[37," + c +
                               "] l, " + t + "[37," + c + "] s) { l = Neg (x) s = Neg (l) }";
      for (const uint64_t seed : {1, 2, 3})
        expect_counts(
            text,
            {odd_scores({37, classes}, seed).cast_to(kTypes[type]), some_labels({37}, classes)},
            kind);
    }
  }
}

TEST(CountCorrect, CountsTokensAndImages) {
  const Classification tokens = {
      .scores = "s", .labels = "y", .class_last = true, .ignore_index = -100};
  expect_counts(
      "g (float[3,5,9] x, int64[3,5] y) => (float[3,5,9] l, float[3,5,9] s)"
      " { l = Neg (x) s = Neg (l) }",
      {odd_scores({3, 5, 9}, 1), some_labels({3, 5}, 9)}, tokens, Scores::kGo);
  const Classification images = {.scores = "s", .labels = "y", .ignore_index = -100};
  expect_counts(
      "g (float[2,7,4,6] x, int64[2,4,6] y) => (float[2,7,4,6] l, float[2,7,4,6] s)"
      " { l = Neg (x) s = Neg (l) }",
      {odd_scores({2, 7, 4, 6}, 2), some_labels({2, 4, 6}, 7)}, images);
  // Flattened labels, and labels of other integers.
  expect_counts(
      "g (float[3,5,9] x, int64[15] y) => (float[3,5,9] l, float[3,5,9] s)"
      " { l = Neg (x) s = Neg (l) }",
      {odd_scores({3, 5, 9}, 3), some_labels({15}, 9)}, tokens);
  expect_counts(
      "g (float[12,9] x, uint8[12] y) => (float[12,9] l, float[12,9] s) { l = Neg (x) s = Neg (l) "
      "}",
      {odd_scores({12, 9}, 3), random_ints({12}, 1, 0, 9).cast_to(DType::kU8)},
      {.scores = "s", .labels = "y"});
}

/// Scores of 16 bits that were padded, widened and moved; the padding would win.
TEST(CountCorrect, LooksThroughWhatWasDoneToTheScores) {
  const Classification kind = {
      .scores = "s", .labels = "y", .class_last = true, .ignore_index = -100};
  Tensor scores = odd_scores({6, 24}, 5);
  for (int64_t line = 0; line < 6; ++line) {
    for (int64_t c = 20; c < 24; ++c) scores.mutable_data<float>()[line * 24 + c] = 99;
  }
  const std::string text =
      "g (bfloat16[6,24] x, int64[2,3] y) => (bfloat16[6,24] l, float[2,3,20] s)"
      " <int64[1] from = {0}, int64[1] to = {20}, int64[1] at = {1}, int64[3] shape = {2, 3, 20}>"
      " { l = Neg (x) p = Neg (l) n = Slice (p, from, to, at) w = Cast <to = 1> (n)"
      " s = Reshape (w, shape) }";
  const std::vector<Tensor> inputs = {scores.cast_to(DType::kBF16), some_labels({2, 3}, 20)};
  for (const Scores what : {Scores::kStay, Scores::kGo}) expect_counts(text, inputs, kind, what);
  Graph graph = typed_graph(text);
  count_correct(graph, kind, Scores::kGo, Places::kFive);
  for (const NodeId id : graph.nodes()) EXPECT_NE(graph.node(id).op, "Slice");
}

TEST(CountCorrect, LeavesToTheHostWhatItCannotCount) {
  const auto counts = [](const std::string& types, const Classification& kind) {
    Graph graph = parse_graph("g (" + types + " { l = Neg (x) s = Neg (l) }", "test");
    const size_t outputs = graph.outputs().size();
    const bool counted = count_correct(graph, kind, Scores::kGo, Places::kFive).has_value();
    if (!counted) {
      EXPECT_EQ(graph.outputs().size(), outputs);
    }
    return counted;
  };
  const Classification kind = {.scores = "s", .labels = "y"};
  EXPECT_TRUE(counts("float[4,3] x, int64[4] y) => (float[4,3] l, float[4,3] s)", kind));
  EXPECT_FALSE(counts("int32[4,3] x, int64[4] y) => (int32[4,3] l, int32[4,3] s)", kind));
  EXPECT_FALSE(counts("float[4,3] x, int64[5] y) => (float[4,3] l, float[4,3] s)", kind));
  EXPECT_FALSE(counts("float[0,3] x, int64[0] y) => (float[0,3] l, float[0,3] s)", kind));
  EXPECT_FALSE(counts("float[4,3] x, int64[4] y) => (float[4,3] l, float[4,3] s)",
                      {.scores = "z", .labels = "y"}));
}

/// In f32 both would be equal, and the lower class right.
TEST(CountCorrect, ScoresOfF64AreNotRounded) {
  const Tensor scores = Tensor::of<double>({1, 2}, {1, 1 + 1e-12});
  const Tensor labels = Tensor::of<int64_t>({1}, {1});
  EXPECT_EQ(count_scores({}, scores, labels, 1, ScoreLoss::kSkip)->top1, 1);
}

}  // namespace
}  // namespace halfnote
