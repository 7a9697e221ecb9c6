// What is no text is refused with its place; nothing crashes the parser.
#include "tests/ir/support.h"

namespace halfnote {
namespace {

using testing::HasSubstr;

struct Bad {
  const char* text;
  const char* message;
  ErrorCode code = ErrorCode::kModel;
};

void PrintTo(const Bad& bad, std::ostream* os) { *os << bad.text; }

class TextErrors : public testing::TestWithParam<Bad> {};

TEST_P(TextErrors, SayWhereAndWhat) {
  const std::string text = GetParam().text;
  EXPECT_THAT(error_of([&] { parse_graph(text, "f"); }, GetParam().code),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Syntax, TextErrors,
    testing::Values(
        Bad{"", "f:1:1: syntax error: expected the name of a graph, got the end of the text"},
        Bad{"g (x) -> (y) {}", "f:1:7: syntax error: expected \"=>\", got \"->\""},
        Bad{"g (x) => (x) {\n  y = \n}", "f:3:1: syntax error: expected an operator, got \"}\""},
        Bad{"g (x) => (x) {\n  y Neg (x)\n}", "f:2:5: syntax error: expected \"=\", got \"Neg\""},
        Bad{"g (x) => (x) {", "f:1:15: syntax error: expected a node or \"}\", got the end"},
        Bad{"g (x) => (x) {} more", "f:1:17: syntax error: expected the end of the text"},
        Bad{"g (x) => (x) { y = \"abc", "f:1:20: a string has no end"},
        Bad{"g (x) => (x) { y = \"abc\\", "f:1:20: a string has no end"},
        Bad{"g (x) => (x) { y = N$eg (x) }", "f:1:21: unexpected character \"$\""},
        Bad{"g (x) => (x) { y = \x01 (x) }", "unexpected character \"\\x01\""},
        Bad{"g (\xc3\xa4) => (x) {}", "f:1:4: unexpected character \"\\xc3\""},
        Bad{"g (float[2,] x) => (x) {}", "f:1:12: syntax error: expected a dim"},
        Bad{"g (float[-2] x) => (x) {}", "f:1:10: an integer is out of range"},
        Bad{"g (float[1099511627777] x) => (x) {}",
            "f:1:10: the size of a dim is over the limit: expected at most 1099511627776, got "
            "more"},
        Bad{"g (float[1,1,1,1,1,1,1,1,1] x) => (x) {}",
            "the rank of a type is over the limit: expected at most 8"},
        Bad{"g (seq(banana) x) => (x) {}", "f:1:8: syntax error: expected a type, got \"banana\""},
        Bad{"g (map(seq(float), float) x) => (x) {}", "expected an element type, got \"seq\""},
        Bad{"g (float \"\") => () {}", "f:1:10: a name is empty"},
        Bad{"g (opaque(a, b) x) => (x) {}", "opaque types are not supported",
            ErrorCode::kUnsupported}));

INSTANTIATE_TEST_SUITE_P(
    Names, TextErrors,
    testing::Values(
        Bad{"g (x, x) => (x) {}", "f:1:7: the name \"x\" is defined twice"},
        Bad{"g (x) => (x) { x = Neg (x) }", "f:1:16: the name \"x\" is defined twice"},
        Bad{"g (x) => (x) { y, y = Neg (x) }", "f:1:19: the name \"y\" is defined twice"},
        Bad{"g () => () <float a = {1}, float a = {2}> {}", "the name \"a\" is defined twice"},
        Bad{"g (hidden) => (x) { y = Neg (hiden) }",
            "f:1:30: the value \"hiden\" is not defined here; is it \"hidden\"?"},
        Bad{"g (x) => (y) { }", "f:1:11: the value \"y\" is not defined here"},
        Bad{"g (x) => (y) { y = Neg (z) z = Neg (x) }",
            "f:1:25: the value \"z\" is not defined here"},
        Bad{"g (x) => (y) { y = If (x) <a = b () => (u) { u = Neg (y) }> }",
            "the value \"y\" is not defined here"},
        Bad{"g (x) => (u) { y = If (x) <a = b () => (u) { u = Neg (x) }> }",
            "f:1:11: the value \"u\" is not defined here"},
        Bad{"g (float x) => (y) <int64 y> { float y = Neg (x) }", "two types are given for \"y\""},
        Bad{"g (float x) => (int64 x) {}", "two types are given for \"x\": expected float"},
        Bad{"g (x) => (float y) <int64 y> { y = Neg (x) }",
            "f:1:27: two types are given for \"y\""}));

INSTANTIATE_TEST_SUITE_P(
    Tensors, TextErrors,
    testing::Values(
        Bad{"g () => () <float[2] w = {1}> {}",
            "f:1:26: a tensor has too few elements: expected 2, got 1"},
        Bad{"g () => () <float[2] w = {1, 2, 3}> {}", "f:1:33: a tensor has too many elements"},
        Bad{"g () => () <float[2] w = {}> {}", "a tensor has too few elements: expected 2, got 0"},
        Bad{"g () => () <float[1099511627776,2] w = {1}> {}", "f:1:40: "},
        Bad{"g () => () <string[1099511627776] w = {\"a\"}> {}", "a tensor has too few elements"},
        Bad{"g () => () <float[N] w = {1}> {}", "f:1:26: a tensor with a value needs numeric dims"},
        Bad{"g () => () <float[] w = {1}> {}", "needs numeric dims"},
        Bad{"g () => () <w = {1}> {}", "only a tensor of a known element type has a value"},
        Bad{"g () => () <seq(float) w = {1}> {}",
            "only a tensor of a known element type has a value"},
        Bad{"g () => () <undefined w = {1}> {}",
            "only a tensor of a known element type has a value"},
        Bad{"g () => () <int8 w = {128}> {}",
            "f:1:23: an integer is out of range: expected a number from -128 to 127, got 128"},
        Bad{"g () => () <bool w = {2}> {}", "expected a number from 0 to 1, got 2"},
        Bad{"g () => () <uint64 w = {-1}> {}", "an integer is out of range"},
        Bad{"g () => () <int64 w = {9223372036854775808}> {}", "an integer is out of range"},
        Bad{"g () => () <int64 w = {1.0}> {}",
            "f:1:24: syntax error: expected an integer, got \"1.0\""},
        Bad{"g () => () <float w = {1e39}> {}",
            "a number is out of range: expected a float, got 1e39"},
        Bad{"g () => () <double w = {1e400}> {}", "a number is out of range: expected a double"},
        Bad{"g () => () <double w = {1e99999}> {}", "a number is out of range"},
        Bad{"g () => () <float16 w = {65520.0}> {}",
            "a number is out of range: expected a float16"},
        Bad{"g () => () <float16 w = {65536}> {}", "an integer is out of range"},
        Bad{"g () => () <float w = {1e}> {}", "expected digits in the exponent"},
        Bad{"g () => () <float w = {1e+}> {}", "expected digits in the exponent"},
        Bad{"g () => () <float w = {nam}> {}", "expected a number, got \"nam\""},
        Bad{"g () => () <float w = {-x}> {}", "expected a number, got \"-x\""},
        Bad{"g () => () <float w = {nan(0x3f800000)}> {}",
            "this is no bit pattern of a NaN of type float"},
        Bad{"g () => () <float16 w = {nan(0x7fc00000)}> {}",
            "no bit pattern of a NaN of type float16"},
        Bad{"g () => () <float w = {nan(12)}> {}", "syntax error: expected \")\""},
        Bad{"g () => () <float w = {...}> {}", "this text is a view"},
        Bad{"g () => () <float w = {\"1\"}> {}", "expected a number"},
        Bad{"g () => () <string w = {1}> {}", "expected a string in quotes"},
        Bad{"g () => () <float[2] w = [\"location\": \"w.bin\"]> {}",
            "external data is not supported in text", ErrorCode::kUnsupported}));

INSTANTIATE_TEST_SUITE_P(
    Attributes, TextErrors,
    testing::Values(
        Bad{"g () => () { = Op <a = 1, a = 2> () }", "f:1:27: the attribute \"a\" is given twice"},
        Bad{"g () => () { = Op <a = []> () }", "an empty list needs a type"},
        Bad{"g () => () { = Op <a: int = [1]> () }",
            "an attribute that is no list has a list as its value"},
        Bad{"g () => () { = Op <a: ints = 1> () }", "expected \"[\" of a list, got \"1\""},
        Bad{"g () => () { = Op <a: number = 1> () }",
            "expected the type of an attribute, got \"number\""},
        Bad{"g () => () { = Op <a: int = 1.5> () }", "expected an integer, got \"1.5\""},
        Bad{"g () => () { = Op <a = [1, 2.5]> () }", "expected an integer, got \"2.5\""},
        Bad{"g () => () { = Op <a: string = 1> () }", "expected a string in quotes, got \"1\""},
        Bad{"g () => () { = Op <a: tensors = [float[2]]> () }",
            "expected the elements of a tensor"},
        Bad{"g () => () { = Op <a = }> () }", "expected the value of an attribute, got \"}\""},
        Bad{"g () => () { = Op <> () }", "expected the name of an attribute, got \">\""},
        Bad{"g () => () { = Op <\"\" = 1> () }", "the name of an attribute is empty"},
        Bad{"g () => () { = Op <a = 1> () <b = 2> }",
            "f:1:30: syntax error: expected a result of a node, got \"<\""},
        Bad{"g () => () { = Op <a: sparse_tensor = float {1}> () }",
            "attributes of type sparse_tensor are not supported", ErrorCode::kUnsupported},
        Bad{"g () => () { = Op <a: type_protos = [float]> () }",
            "attributes of type type_protos are not supported", ErrorCode::kUnsupported},
        Bad{"g () => () { = \"\" () }", "the name of an operator is empty"}));

INSTANTIATE_TEST_SUITE_P(
    Additions, TextErrors,
    testing::Values(
        Bad{"g () => () <float w = {1}> { state wait w -> w }",
            "expected weight, moment, statistic"},
        Bad{"g () => () <float w = {1}> { state weight v -> w }",
            "the value \"v\" is not defined here"},
        Bad{"g (x) => () { state weight x -> x }", "f:1:28: \"x\" is no initializer"},
        Bad{"g () => () <float w = {1}> { state weight w -> w state weight w -> w }",
            "f:1:63: \"w\" is a state already"},
        Bad{"g () => () <float w = {1}> { = If <b = c () => () { state weight w -> w }> () }",
            "a subgraph has no states"},
        Bad{"g () => () { a = B () # role=bakward\n}",
            "f:1:30: syntax error: expected forward, loss, backward, scaling or optimizer"},
        Bad{"g () => () { a = B () # rolle=backward\n}",
            "f:1:25: a comment begins with an unknown word: expected \"role=\" or other text"},
        Bad{"g () => () { a = B () # role=loss and more\n}",
            "expected one of role, precision, reason"},
        Bad{"g () => () { a = B () # role=loss role=loss\n}", "\"role\" is given twice"},
        Bad{"g () => () { a = B () # precision=bf17\n}", "expected an element type"},
        Bad{"g () => () { a = B () # reason=none\n}", "expected a string in quotes"},
        Bad{"g () => () { a = B () # reason=\"none\n}", "f:1:32: a string has no end"},
        Bad{"g () => () { a = B () # scale=1,1\n}",
            "\"scale\" names a result that the node does not have"},
        Bad{"g () => () { a = B () # scale=128\n}", "an integer is out of range"},
        Bad{"g () => () { a = B () # meta={}\n}", "expected a string in quotes"},
        Bad{"g (x # trainable\n) => () {}", "only an initializer is trainable"},
        Bad{"g () => () <float w = {1} # trainable weights\n> {}",
            "expected one of trainable, frozen, scale"}));

TEST(TextLimits, NestingOfGraphs) {
  const auto nested = [](int depth) {
    std::string text = "g () => () {";
    for (int i = 0; i < depth; ++i) text += " = If <b = c () => () {";
    for (int i = 0; i < depth; ++i) text += "}> ()";
    return text + "}";
  };
  EXPECT_NO_THROW(verify(parse_graph(nested(15), "f")));  // the graph itself is a level too
  EXPECT_THAT(error_of([&] { parse_graph(nested(16), "f"); }, ErrorCode::kModel),
              HasSubstr("the nesting of graphs is over the limit: expected at most 16"));
  EXPECT_THAT(error_of([&] { parse_graph(nested(100000), "f"); }, ErrorCode::kModel),
              HasSubstr("the nesting of graphs is over the limit"));
}

TEST(TextLimits, NestingOfTypes) {
  const auto nested = [](int depth) {
    std::string type = "float";
    for (int i = 0; i < depth; ++i) type = "seq(" + type + ")";
    return "g (" + type + " x) => (x) {}";
  };
  EXPECT_NO_THROW(parse_graph(nested(15), "f"));
  for (const int depth : {16, 10000}) {
    EXPECT_THAT(error_of([&] { parse_graph(nested(depth), "f"); }, ErrorCode::kModel),
                HasSubstr("the nesting of types is over the limit"));
  }
}

TEST(TextLimits, SizeOfDims) {
  EXPECT_NO_THROW(parse_graph("g (float[1099511627776] x) => () {}", "f"));  // 2^40
}

TEST(TextLimits, LengthOfNames) {
  const std::string longest(64 * 1024, 'a');
  EXPECT_NO_THROW(parse_graph("g (" + longest + ") => () {}", "f"));
  EXPECT_THAT(
      error_of([&] { parse_graph("g (" + longest + "a) => () {}", "f"); }, ErrorCode::kModel),
      HasSubstr("the length of a name is over the limit"));
}

TEST(TextLimits, LongTokensAreCutInMessages) {
  const std::string message =
      error_of([&] { parse_graph("g (x) = " + std::string(5000, 'a'), "f"); }, ErrorCode::kModel);
  EXPECT_LT(message.size(), 200u);
}

}  // namespace
}  // namespace halfnote
