// The text of graphs: what is printed is read back the same, and plain ONNX text is read as ONNX
// reads it.
#include "tests/ir/support.h"

namespace halfnote {
namespace {

using testing::HasSubstr;

struct Case {
  const char* title;
  const char* text;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.title; }

// --- canonical texts: printed exactly as they are written here -----------------------------------

class Canonical : public testing::TestWithParam<Case> {};

TEST_P(Canonical, PrintsAsWritten) {
  const std::string text = GetParam().text;
  EXPECT_EQ(print(graph_of(text)), text);
}

INSTANTIATE_TEST_SUITE_P(
    Text, Canonical,
    testing::Values(
        Case{"empty", R"(g () => () {
}
)"},
        Case{"types on every result", R"(g (float[N,4] x, float[4,10] w) => (float[N,10] y) {
   [n1] float[N,10] y = Gemm <alpha: float = 0.5, transB: int = 1> (x, w)
}
)"},
        Case{"initializers of every type", R"(g () => () <
   float[2,3] a = {1, 2.5, -0, 1e-20, 3.4028235e+38, 1e-45},
   double b = {0.1},
   float16[7] c = {0.1, 1.0, -0.0, 65500.0, 6e-08, inf, -inf},
   bfloat16[6] d = {0.1, 1.0, 3.39e+38, 9e-41, nan, -nan},
   int8[2] e = {-128, 127},
   uint8[2] f = {0, 255},
   int16[2] h = {-32768, 32767},
   uint16[1] i = {65535},
   int32[2] j = {-2147483648, 2147483647},
   uint32[1] k = {4294967295},
   int64[2] l = {-9223372036854775808, 9223372036854775807},
   uint64[1] m = {18446744073709551615},
   bool[2] n = {0, 1},
   string[2] o = {"a", "say \"hi\" \\"},
   complex64[1] p = {1, -2.5},
   complex128[1] q = {0.1, inf},
   int4[2] r = {-8, 7},
   uint4[1] s = {15},
   int2[2] t = {-2, 1},
   uint2[1] u = {3},
   float8e4m3fn[2] v = {0, 255},
   float4e2m1[1] w = {15},
   float8e8m0[1] x = {127},
   float[0] y = {},
   float[2,0,3] z = {}
> {
}
)"},
        Case{"special floats keep their bits", R"(g () => () <
   float[6] a = {inf, -inf, nan, -nan, nan(0x7fa00001), nan(0xffc12345)},
   double[2] b = {nan, nan(0x7ff0000000000001)},
   float16[2] c = {nan, nan(0x7e01)},
   bfloat16[1] d = {nan(0xff81)}
> {
}
)"},
        Case{"attributes of every kind", R"(g (float[N] x) => (float[N] y) {
   float[N] y = custom.Op <a: int = -3, b: float = 1, c: float = -inf, d: string = "a b", e: tensor = float[2] {1, 2}, f: ints = [1, 2], g: floats = [1, 2.5, nan], h: strings = ["x", "y"], i: tensors = [int64 {1}, float16[1] {0.5}], j: ints = [], k: type_proto = seq(float[N]), l: floats = [], m: strings = [], n: tensors = [], p: type_proto = float> (x)
}
)"},
        Case{
            "types",
            R"(g (float a, float[] b, float[?,N,3] c, seq(float[2]) d, optional(seq(int64)) e, map(string, float[]) f, sparse_tensor(float[3]) h, seq(?) i, undefined[2] j, float["a + 1"] k, l) => () {
}
)"},
        Case{
            "names that are no identifiers",
            R"(g (float[2] "x/0:1", float[2] "float", float[2] "-", float[2] "nan", float[2] "ü\x01") => (float[2] "a.b") {
   ["n 1"] float[2] "a.b" = "my-domain"."op 1":"over load" <"attr-1": int = 1> ("x/0:1", "float")
   float "-_1" = Op ("-")
   float float_1, float[2] "inf" = Op ("nan")
}
)"},
        Case{"absent operands and results", R"(g (float[N] x) => (float[N] y) {
   float[N] y, "", float z = Op (x, "", x)
   float[N] u, "" = Op ("", x, "")
   = Sink (x)
}
)"},
        Case{"no operands, domain, overload", R"(g () => () {
   [c] float[2] c = Constant <value: tensor = float[2] {1, 2}> ()
   float[2] d = ai.halfnote.Dropout:f32_2 <ratio: float = 0.5> (c)
}
)"},
        Case{"notes of nodes", R"(g (float[N] x) => (float[N] y) {
   [conv1] float[N] y = Conv (x)  # precision=bf16 reason="allow list: Conv"
   [g1] float[N] a, "", float[N] b = ConvGrad (y)  # role=backward precision=f16 reason="follows \"conv1\"" origin="conv1" scale=1,0,1
   [l] float c = Loss (a)  # role=loss scale=-1
   [s] float d = Scale (c)  # role=scaling meta={"k": "v", "a": ""}
   [o] float e = Step (d)  # role=optimizer reason="line one\x0aline two"
}
)"},
        Case{"states and trainable initializers", R"(g (float[N] x) => () <
   float[2] w = {1, 2},  # trainable
   float s = {65536},  # scale=1
   float[2] m = {0, 0},
   int64 t = {0}  # trainable scale=-1
> {
   float[2] w_new, float[2] m_new = Momentum (w, x, m)  # role=optimizer
   float s_new = Identity (s)  # scale=1
   state weight w -> w_new
   state moment m -> m_new
   state scaler s -> s_new
   state counter t -> t
}
)"},
        Case{"inputs with a scale", R"(g (
   float[N] x,
   float[N] dy  # scale=1
) => (float[N] y) {
   float[N] y = Mul (x, dy)  # scale=1
}
)"},
        Case{"a graph with a name and a doc", R"("my graph" () => () {  # doc="a \"b\"\x0ac"
}
)"},
        Case{"subgraphs", R"(g (bool c, float[N] x) => (float[N] y) <
   float one = {1}
> {
   [if] float[N] y = If (c) <
      else_branch: graph = else_g () => (float[N] e) <
         float two = {2}
      > {
         [m] float[N] e = Mul (x, two)  # precision=f32
      },
      then_branch: graph = then_g () => (float[N] t) {
         float[N] t = If (c) <
            else_branch: graph = "" () => (float[N] x) {
            },
            then_branch: graph = inner () => (float[N] i) {
               float[N] i = Add (x, one)
            }
         >
      }
   >  # role=loss
}
)"},
        Case{"region inputs and lists of graphs", R"(g (float[N] x) => (float[N] y) {
   float[N] y = Case (x) <
      bodies: graphs = [a (float[N] p) => (float[N] p) {
      }, b (float[N] q) => (float[N] r) {
         float[N] r = Neg (q)
      }],
      n: int = 2,
      none: graphs = []
   >
}
)"},
        Case{"a result called -", R"(g () => (float "-") {
   float minus, float "-", "" = Op ()
}
)"},
        Case{"a value called state", R"(g (float state) => (float weight) {
   float weight = Neg (state)
}
)"}));

// --- plain ONNX text: read as ONNX's parser reads it ---------------------------------------------

struct Plain {
  const char* title;
  const char* text;
  const char* canonical;
};

void PrintTo(const Plain& c, std::ostream* os) { *os << c.title; }

class PlainOnnx : public testing::TestWithParam<Plain> {};

TEST_P(PlainOnnx, IsRead) {
  const std::string canonical = print(graph_of(GetParam().text));
  EXPECT_EQ(canonical, GetParam().canonical);
  EXPECT_EQ(print(graph_of(canonical)), canonical);
}

INSTANTIATE_TEST_SUITE_P(
    Text, PlainOnnx,
    testing::Values(
        Plain{"value infos, comments and attributes behind the operands", R"(
# a comment in front
agraph (float[N, 128] X, float[128,10] W, float[10] B) => (float[N] C)
  <float[N,10] T, S>   # role of these: types
{
  T = MatMul(X, W)     # rolled up
  S = Add(T, B)        # x=3 says nothing
  [last] C = Softmax(S) <axis = -1>
})",
              R"(agraph (float[N,128] X, float[128,10] W, float[10] B) => (float[N] C) {
   float[N,10] T = MatMul (X, W)
   S = Add (T, B)
   [last] float[N] C = Softmax <axis: int = -1> (S)
}
)"},
        Plain{"attributes without a type", R"(g (x) => (y) {
  y = a.b.Op <i=1, f=2.0, s="t", l=[1,2], m=[1.0, 2], n=["u"], t = float[1] name = {3}, u = float {3}, v = seq(float),
              w = inf, k = float[2,3], q = -NaN, z = [nan, -Infinity]>(x)
})",
              R"(g (x) => (y) {
   y = a.b.Op <f: float = 2, i: int = 1, k: type_proto = float[2,3], l: ints = [1, 2], m: floats = [1, 2], n: strings = ["u"], q: float = -nan, s: string = "t", t: tensor = float[1] {3}, u: tensor = float {3}, v: type_proto = seq(float), w: float = inf, z: floats = [nan, -inf]> (x)
}
)"},
        Plain{"constants", R"(g () => (float[2] y) {
  a = Constant <value = float[2] {1.0, 2.0}> ()
  b = Constant <value_int: int = 1> ()
  c = Constant <value_floats = [1.0, 0.5]> ()
  y = Constant <value_ints: ints = []> ()
})",
              R"(g () => (float[2] y) {
   a = Constant <value: tensor = float[2] {1, 2}> ()
   b = Constant <value_int: int = 1> ()
   c = Constant <value_floats: floats = [1, 0.5]> ()
   float[2] y = Constant <value_ints: ints = []> ()
}
)"},
        Plain{"absent identifiers", R"(g (x) => (y) {
  y = Op(,x)
  a, = Op(x,)
  b, , c = Op(,)
  d = Op(x,"",x,)
})",
              R"(g (x) => (y) {
   y = Op ("", x)
   a = Op (x)
   b, "", c = Op ("")
   d = Op (x, "", x)
}
)"},
        Plain{"bit patterns of 16-bit floats",
              R"(g () => () <float16[2] h = {15360, 31744}, bfloat16[2] b = {16256, -1.5}> {})",
              R"(g () => () <
   float16[2] h = {1.0, inf},
   bfloat16[2] b = {1.0, -1.5}
> {
}
)"},
        Plain{"subgraphs that use a name twice, and one that hides an outer name",
              R"(g (bool c, float x) => (float y) {
  y = If (c) <then_branch = t () => (float r) { r = Abs(x) },
              else_branch = e () => (float r) { x = Neg(x) r = Abs(x) }>
})",
              R"(g (bool c, float x) => (float y) {
   float y = If (c) <
      else_branch: graph = e () => (float r_1) {
         x_1 = Neg (x)
         float r_1 = Abs (x_1)
      },
      then_branch: graph = t () => (float r) {
         float r = Abs (x)
      }
   >
}
)"},
        Plain{"names that begin with type words",
              R"(g (float, seq, optional) => (map) { map, string = Op(float, seq, optional) })",
              R"(g ("float", "seq", "optional") => ("map") {
   "map", "string" = Op ("float", "seq", "optional")
}
)"},
        Plain{"a backslash takes the next character as it is",
              R"(g () => () { = Op <s = "a\nb\"\\c"> () })",
              R"(g () => () {
   = Op <s: string = "anb\"\\c"> ()
}
)"}));

// --- other properties ----------------------------------------------------------------------------

TEST(Text, InitializersAmongTheInputsAreInitializersOnly) {
  const Graph graph = graph_of(R"(g (float[2] x, float[2] w = {1, 2}, float v) => (float[2] y)
    <float v = {5}> { y = Op(x, w, v) })");
  EXPECT_EQ(print(graph), R"(g (float[2] x) => (float[2] y) <
   float[2] w = {1, 2},
   float v = {5}
> {
   float[2] y = Op (x, w, v)
}
)");
}

TEST(Text, LongConstantsAreElidedInViewsWhichAreNotReadBack) {
  const Graph graph = graph_of(R"(g () => () <float[3] w = {1, 2, 3}, float[2] v = {1, 2}> {
    a = Constant <value = int64[4] {1, 2, 3, 4}> () })");
  const std::string view = print(graph, {.elide_above = 2});
  EXPECT_EQ(view, R"(g () => () <
   float[3] w = {...},
   float[2] v = {1, 2}
> {
   a = Constant <value: tensor = int64[4] {...}> ()
}
)");
  EXPECT_THAT(error_of([&] { parse_graph(view, "v.onnxtxt"); }, ErrorCode::kModel),
              HasSubstr("v.onnxtxt:2:18: this text is a view, its large constants were left out"));
}

TEST(Text, EveryHalfAndBFloat16PrintsAndReadsBack) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Tensor all(dtype, {65536});
    auto* bits = reinterpret_cast<uint16_t*>(all.mutable_bytes());
    for (uint32_t i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
    Graph graph;
    graph.add_initializer("all", all);
    const Graph again = parse_graph(print(graph), "all");
    EXPECT_TRUE(identical(again.value(again.find("all")).tensor, all)) << onnx_name(dtype);
  }
}

TEST(Text, RandomFloatsAndDoublesPrintAndReadBack) {
  uint64_t random = 0x1234567;
  const auto next = [&] { return random = random * 6364136223846793005u + 1442695040888963407u; };
  Tensor f32(DType::kF32, {20000}), f64(DType::kF64, {20000});
  for (int i = 0; i < 20000; ++i) {
    reinterpret_cast<uint32_t*>(f32.mutable_bytes())[i] = static_cast<uint32_t>(next() >> 32);
    reinterpret_cast<uint64_t*>(f64.mutable_bytes())[i] = next() ^ (next() >> 32);
  }
  Graph graph;
  graph.add_initializer("a", f32);
  graph.add_initializer("b", f64);
  const Graph again = parse_graph(print(graph), "all");
  EXPECT_TRUE(identical(again.value(again.find("a")).tensor, f32));
  EXPECT_TRUE(identical(again.value(again.find("b")).tensor, f64));
}

TEST(Text, StringsKeepEveryByte) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  bytes += "\u00e9 \xe2\x80\xae \xf0\x9f\x98\x80";
  Graph graph;
  NodeSpec spec;
  spec.op = "Op";
  spec.attributes.set("s", bytes);
  const NodeId node = graph.create(std::move(spec), 0, graph.end());
  graph.node(node).metadata = {{bytes, bytes}};
  graph.node(node).origin = bytes;
  const std::string text = print(graph);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const Graph again = parse_graph(text, "bytes");
  const Node& read = again.node(again.first(again.main()));
  EXPECT_EQ(read.attributes.get_string("s", ""), bytes);
  EXPECT_EQ(read.origin, bytes);
  EXPECT_EQ(read.metadata, graph.node(node).metadata);
  EXPECT_EQ(print(again), text);
}

TEST(Text, TinyNumbersBecomeZeroWithTheirSign) {
  const Graph graph =
      graph_of("g () => () <float[2] a = {1e-400, -1e-60}, float16 h = {-1e-30}> {}");
  EXPECT_THAT(print(graph), HasSubstr("{0, -0}"));
  EXPECT_THAT(print(graph), HasSubstr("{-0.0}"));
}

TEST(Text, RemovedPartsLeaveNoTrace) {
  const std::string text = print(graph_of("g (x) => (y) { y = Neg (x) }"));
  Graph graph = graph_of("g (x) => (y) { a = Abs (x) b = Abs (a) y = Neg (x) }");
  graph.remove(graph.value(graph.find("b")).producer);
  graph.remove(graph.value(graph.find("a")).producer);
  graph.remove_value(graph.add_initializer("c", Tensor::scalar(1.0f)));
  EXPECT_EQ(print(graph), text);
}

}  // namespace
}  // namespace halfnote
