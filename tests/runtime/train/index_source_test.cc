// The way from what a run feeds a graph to the indices that a node reads.
#include "runtime/train/labels/index_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "passes/canonical/infer_shapes.h"

namespace halfnote {
namespace {

using testing::ElementsAre;

/// A graph whose nodes `body` make `i` of `a` (int64[2,3]), `b` (int64[2,3]) and `f` (float[2,3]).
Graph graph_of(const std::string& body) {
  Model model = parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23]> g (int64[2,3] a, int64[2,3] b, float[2,3] f) => "
      "(int64[K] i) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] all = "
      "{-1}, int64[3] table = {5, 6, 7}> { " +
          body + " }",
      "test");
  infer_graph(model.graph);
  return std::move(model.graph);
}

struct Way {
  IndexSource source;
  std::vector<int64_t> numbers;
  std::vector<std::string> from;  // `a3`: element 3 of a; `-`: no element
};

/// Of a = 0 … 5, b = 10 … 15 and f = 0.5 … 5.5.
Way way_of(const std::string& body) {
  const Graph graph = graph_of(body);
  Way way{IndexSource(graph, graph.outputs()[0]), {}, {}};
  if (!way.source.found()) return way;
  const ReadElements read = way.source.read(
      std::vector<Tensor>{Tensor::of<int64_t>({2, 3}, {0, 1, 2, 3, 4, 5}),
                          Tensor::of<int64_t>({2, 3}, {10, 11, 12, 13, 14, 15}),
                          Tensor::of<float>({2, 3}, {0.5F, 1.5F, 2.5F, 3.5F, 4.5F, 5.5F})});
  for (int64_t k = 0; k < read.numbers.size(); ++k) {
    way.numbers.push_back(read.numbers.at_as_int(k));
    const auto from = read.from(k);
    way.from.push_back(from ? "abf"[from->input] + std::to_string(from->at) : "-");
  }
  return way;
}

TEST(IndexSource, AViewIsReadInOrder) {
  const Way way = way_of("r = Reshape (a, all) n = Unsqueeze (r, zero) i = Squeeze (n, zero)");
  EXPECT_TRUE(way.source.in_order());
  EXPECT_THAT(way.from, ElementsAre("a0", "a1", "a2", "a3", "a4", "a5"));
}

TEST(IndexSource, PartsAreReadAsTheyAreFed) {
  const Way way = way_of(
      "t = Transpose <perm: ints = [1, 0]> (a) s = Slice (t, one, two, zero)\n"
      "  p, q = Split <axis: int = 1, num_outputs: int = 2> (s) j = Concat <axis: int = 1> (q, p)\n"
      "  i = Reshape (j, all)");
  EXPECT_TRUE(way.source.as_fed());
  EXPECT_FALSE(way.source.in_order());
  EXPECT_THAT(way.from, ElementsAre("a4", "a1"));
  EXPECT_THAT(way.numbers, ElementsAre(4, 1));
}

TEST(IndexSource, FieldsAndConstantsAreToldApart) {
  const Way way = way_of(
      "r = Reshape (a, all) s = Reshape (b, all) u = Slice (s, one, two)\n"
      "  v = Slice (r, zero, two) i = Concat <axis: int = 0> (u, one, v)");
  EXPECT_TRUE(way.source.as_fed());
  EXPECT_THAT(way.from, ElementsAre("b1", "-", "a0", "a1"));
  EXPECT_THAT(way.numbers, ElementsAre(11, 1, 0, 1));
}

TEST(IndexSource, WhatIsConvertedIsNotAsFed) {
  const Way way = way_of(
      "c = Cast <to: int = 7> (f) m = Mul (c, two) n = Sub (one, m)\n"
      "  i = Reshape (n, all)");
  EXPECT_TRUE(way.source.found());
  EXPECT_FALSE(way.source.as_fed());
  EXPECT_THAT(way.numbers, ElementsAre(1, -1, -3, -5, -7, -9));
  EXPECT_THAT(way.from, ElementsAre("f0", "f1", "f2", "f3", "f4", "f5"));
}

/// What is chosen follows from the data, though each element is as it is fed.
TEST(IndexSource, AChoiceIsFollowed) {
  const Way way = way_of("c = Less (a, two) w = Where (c, b, a) i = Reshape (w, all)");
  EXPECT_FALSE(way.source.as_fed());
  EXPECT_THAT(way.from, ElementsAre("b0", "b1", "a2", "a3", "a4", "a5"));
}

TEST(IndexSource, SizesOfWhatIsFedChangeNothing) {
  const Way way = way_of(
      "s = Shape (b) e = Slice (a, zero, one, zero) x = Expand (e, s)\n"
      "  i = Reshape (x, all)");
  EXPECT_TRUE(way.source.as_fed());
  EXPECT_THAT(way.from, ElementsAre("a0", "a1", "a2", "a0", "a1", "a2"));
}

TEST(IndexSource, NarrowNumbersAreNotAsFed) {
  const Way way = way_of(
      "n = Cast <to: int = 6> (a) w = Cast <to: int = 7> (n)\n"
      "  i = Reshape (w, all)");
  EXPECT_FALSE(way.source.as_fed());
  EXPECT_EQ(way.from.size(), 6u);
}

TEST(IndexSource, OtherWaysNameTheNodeThatEndsThem) {
  const std::pair<const char*, const char*> kCases[] = {
      {"[sum] s = Add (a, b) i = Reshape (s, all)", "\"sum\" (Add)"},
      {"[look] t = Gather (table, a) i = Reshape (t, all)", "\"look\" (Gather)"},
      {"[best] m = ArgMax <axis: int = 1, keepdims: int = 0> (f) i = Identity (m)",
       "\"best\" (ArgMax)"},
  };
  for (const auto& [body, node] : kCases) {
    const Way way = way_of(body);
    EXPECT_FALSE(way.source.found()) << body;
    EXPECT_FALSE(way.source.as_fed()) << body;
    EXPECT_EQ(way.source.stopped_at(), node);
  }
}

}  // namespace
}  // namespace halfnote
