// The content hash changes with everything the text shows, and with nothing else.
#include "compiler/ir/hash.h"

#include <set>

#include "tests/ir/support.h"

namespace halfnote {
namespace {

constexpr const char* kBase =
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }";

// Each differs from the base and from all others in one respect.
constexpr const char* kVariants[] = {
    kBase,
    "h (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[M] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[?] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[1] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (bfloat16[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (seq(float[N]) x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (c, float[N] x) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {2}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {-1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float[1] w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1} # trainable\n> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1} # scale=1\n> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [m] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Pp <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = d.Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op:o <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <b: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 2> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: float = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: ints = [1]> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: ints = []> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: strings = [\"1\"]> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: string = \"1\"> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = @a> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a = @a> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a = float {1}> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a = float> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a = r () => () {}> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a = r (p) => (p) {}> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (w, x) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w, \"\") }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (\"\", x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y, z = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (x) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => () <float w = {1}> { [n] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] float[N] y = Op <a: int = 1> (x, w) }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) # role=loss\n }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) # precision=f16\n }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) # reason=\"r\"\n }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) # origin=\"r\"\n }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) # scale=1\n }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) # meta={\"a\": "
    "\"\"}\n }",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) state weight w -> w "
    "}",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) state moment w -> w "
    "}",
    "g (float[N] x, c) => (y) <float w = {1}> { [n] y = Op <a: int = 1> (x, w) state weight w -> y "
    "}",
    "g (float[N] x, c) => (y) <float w = {1}> { # doc=\"d\"\n [n] y = Op <a: int = 1> (x, w) }",
};

TEST(Hash, EveryChangeCounts) {
  std::set<uint64_t> seen;
  for (const char* text : kVariants) {
    EXPECT_TRUE(seen.insert(content_hash(parse_graph(text, "h"))).second) << text;
  }
}

TEST(Hash, HistoryDoesNotCount) {
  const uint64_t want = content_hash(parse_graph(kBase, "h"));
  Graph graph = parse_graph(kBase, "h");
  const NodeId old = graph.first(graph.main());
  const ValueId extra = add_op(graph, "Extra", {}, "extra");
  graph.remove(graph.value(extra).producer);
  graph.remove_value(graph.add_initializer("k", Tensor::scalar(1.0f)));
  EXPECT_EQ(content_hash(graph), want);
  // The same node again, under a new handle.
  graph.set_outputs(graph.main(), {});
  NodeSpec spec{"Op", {graph.find("x"), graph.find("w")}, {{"a", int64_t{1}}}, {}, "n"};
  graph.remove(old);
  const NodeId again = graph.create(std::move(spec), {"y"}, graph.end());
  graph.set_outputs(graph.main(), {graph.output(again)});
  EXPECT_EQ(content_hash(graph), want);
  EXPECT_EQ(content_hash(Graph(graph)), want);
}

TEST(Hash, LargeTensorsCountByStorageSizeAndSamples) {
  Graph a, b, c;
  const Tensor large(DType::kF32, {5000});
  a.add_initializer("w", large);
  b.add_initializer("w", large);
  c.add_initializer("w", large.deep_copy());
  EXPECT_EQ(content_hash(a), content_hash(b));
  EXPECT_NE(content_hash(a), content_hash(c));
  EXPECT_EQ(content_hash(large), content_hash(large.deep_copy()));
  EXPECT_NE(content_hash(large), content_hash(Tensor::full(DType::kF32, {5000}, 1)));
  EXPECT_NE(content_hash(large), content_hash(Tensor(DType::kF32, {5001})));
}

TEST(Hash, SmallTensorsCountByTheirBytes) {
  const Tensor a = Tensor::of<float>({2}, {1.0f, 2.0f});
  EXPECT_EQ(content_hash(a), content_hash(a.deep_copy()));
  EXPECT_NE(content_hash(a), content_hash(a.reshaped({2, 1})));
  EXPECT_NE(content_hash(a), content_hash(Tensor::of<float>({2}, {1.0f, 3.0f})));
  EXPECT_NE(content_hash(Tensor::strings({2}, {"ab", ""})),
            content_hash(Tensor::strings({2}, {"a", "b"})));
}

TEST(Hash, AttributesAndTextsHashAlikeInEveryProcess) {
  const Attributes a = {{"x", int64_t{1}}, {"y", std::string("s")}};
  const Attributes b = {{"y", std::string("s")}, {"x", int64_t{1}}};
  EXPECT_EQ(content_hash(a), content_hash(b));
  EXPECT_NE(content_hash(a), content_hash(Attributes{{"x", int64_t{1}}}));
  // Seeds of initial weights come from these: they must never change.
  EXPECT_EQ(hash_text("weight"), 5232390608825002928u);
  EXPECT_EQ(hash_mix(1, 2), 17141381595179526581u);
}

TEST(Hash, EveryPartOfAModelCounts) {
  const char* variants[] = {
      "g () => () {}",
      "<ir_version: 9> g () => () {}",
      "<opset_import: [\"\" : 22]> g () => () {}",
      "<opset_import: [\"a\" : 22]> g () => () {}",
      "<producer_name: \"p\"> g () => () {}",
      "<producer_version: \"p\"> g () => () {}",
      "<domain: \"p\"> g () => () {}",
      "<doc_string: \"p\"> g () => () {}",
      "<model_version: 1> g () => () {}",
      "<metadata_props: [\"a\": \"b\"]> g () => () {}",
      "g () => () {} f () => () {}",
      "g () => () {} <overload: \"o\"> f () => () {}",
      "g () => () {} <domain: \"o\"> f () => () {}",
      "g () => () {} <opset_import: [\"\" : 1]> f () => () {}",
      "g () => () {} f <a> () => () {}",
      "g () => () {} f <a = 1> () => () {}",
      "g () => () {} f <a = 2> () => () {}",
      "g () => () {} f () => () { = Op () }",
      "g () => () {} training_info s { algorithm: a () => () {} }",
      "g () => () {} training_info t { algorithm: a () => () {} }",
      "g () => () {} training_info s { algorithm: b () => () {} }",
      "g () => () {} training_info s { initialization: i () => () {} algorithm: a () => () {} }",
      "g () => () {} training_info s { initialization_binding: [a = b] algorithm: a () => () {} }",
  };
  std::set<uint64_t> seen;
  for (const char* text : variants) {
    EXPECT_TRUE(seen.insert(content_hash(parse_model(text, "h"))).second) << text;
  }
}

}  // namespace
}  // namespace halfnote
