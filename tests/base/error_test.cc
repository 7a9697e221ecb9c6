// How errors read, and the suggestions for mistyped words.
#include "base/error.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace halfnote {
namespace {

Error plain() { return {ErrorCode::kModel, "bad axis"}; }

TEST(Errors, RenderTheirParts) {
  const std::pair<Error, const char*> cases[] = {
      {plain(), "bad axis"},
      {plain().at({.file = "m.onnx"}), "m.onnx: bad axis"},
      {plain().at({.node = "n"}), "node \"n\": bad axis"},
      {plain().at({.op = "Concat"}), "(Concat): bad axis"},
      {plain().at({.file = "m.onnx", .op = "Concat"}), "m.onnx: (Concat): bad axis"},
      {plain().expected("1", "2"), "bad axis: expected 1, got 2"},
      {plain().expected("1", ""), "bad axis: expected 1"},
      {plain().expected("", "2"), "bad axis: got 2"},
      {plain().hint("use 1"), "bad axis; use 1"},
      {plain().in_pass("lift"), "bad axis (in pass lift)"},
      {plain()
           .at({.file = "m.onnx", .node = "n", .op = "Concat"})
           .expected("an axis in [-2, 2)", "7")
           .hint("count from 0")
           .in_pass("infer-shapes"),
       "m.onnx: node \"n\" (Concat): bad axis: expected an axis in [-2, 2), got 7; count from 0 "
       "(in pass infer-shapes)"},
  };
  for (const auto& [error, text] : cases) EXPECT_STREQ(error.what(), text);
}

TEST(Errors, KeepTheirPartsAsData) {
  const Error error =
      plain().at({.file = "f", .node = "n", .op = "o"}).expected("e", "g").hint("h");
  EXPECT_EQ(error.code(), ErrorCode::kModel);
  EXPECT_EQ(error.exit_code(), 3);
  EXPECT_EQ(error.place().file, "f");
  EXPECT_EQ(error.place().node, "n");
  EXPECT_EQ(error.place().op, "o");
  EXPECT_EQ(error.problem(), "bad axis");
  EXPECT_EQ(error.expectation(), "e");
  EXPECT_EQ(error.value(), "g");
  EXPECT_EQ(error.hint_text(), "h");
}

TEST(Errors, WithinFillsOnlyWhatIsEmpty) {
  Error error = plain().at({.node = "inner"});
  error.within({.file = "m.onnx", .node = "outer", .op = "If"});
  EXPECT_STREQ(error.what(), "m.onnx: node \"inner\" (If): bad axis");
}

TEST(Errors, AreThrownAndCaughtAsExceptions) {
  try {
    throw plain().hint("h");
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "bad axis; h");
  }
}

TEST(Errors, EveryCodeHasItsOwnNameAndNumber) {
  const ErrorCode codes[] = {ErrorCode::kUsage,    ErrorCode::kModel,      ErrorCode::kUnsupported,
                             ErrorCode::kData,     ErrorCode::kNumerics,   ErrorCode::kMemory,
                             ErrorCode::kIo,       ErrorCode::kCheckpoint, ErrorCode::kDevice,
                             ErrorCode::kPeer,     ErrorCode::kAccuracy,   ErrorCode::kInternal,
                             ErrorCode::kPreempted};
  std::set<std::string_view> names;
  std::set<int> numbers;
  for (const ErrorCode code : codes) {
    names.insert(kind_name(code));
    numbers.insert(Error(code, "x").exit_code());
  }
  EXPECT_EQ(names.size(), std::size(codes));
  EXPECT_EQ(numbers.size(), std::size(codes));
  EXPECT_EQ(numbers.count(0) + numbers.count(1), 0u);
}

TEST(EditDistance, CountsEditsAndSwaps) {
  const struct {
    const char *a, *b;
    int distance;
  } cases[] = {{"", "", 0},
               {"", "abc", 3},
               {"Relu", "Relu", 0},
               {"Relu", "relu", 1},
               {"Realu", "Relu", 1},
               {"Rleu", "Relu", 1},
               {"kitten", "sitting", 3},
               {"Softmax", "Sofmtax", 1},
               {"ab", "ba", 1},
               {"abc", "cab", 2}};
  for (const auto& c : cases) {
    EXPECT_EQ(edit_distance(c.a, c.b), c.distance) << c.a << " " << c.b;
    EXPECT_EQ(edit_distance(c.b, c.a), c.distance) << c.b << " " << c.a;
  }
}

TEST(Closest, SuggestsOnlyNearWords) {
  const std::vector<std::string> ops = {"Relu", "Softmax", "LayerNormalization", "Selu"};
  EXPECT_EQ(closest("Sofmax", ops), "Softmax");
  EXPECT_EQ(closest("relu", ops), "Relu");
  EXPECT_EQ(closest("Rellu", ops), "Relu");
  EXPECT_EQ(closest("LayerNormalisat", ops), "");
  EXPECT_EQ(closest("LayerNormaliation_", ops), "LayerNormalization");
  EXPECT_EQ(closest("Convolution", ops), "");
  EXPECT_EQ(closest("R", ops), "");
  EXPECT_EQ(closest("Rule", ops), "");  // two letters of four
  EXPECT_EQ(closest("b", std::vector<std::string>{"W", "B"}), "");
  EXPECT_EQ(closest("xx", std::vector<std::string>{"x"}), "x");
  EXPECT_EQ(closest("Relu", std::vector<std::string>{}), "");
}

TEST(Closest, TakesTheFirstOfEquallyNearWords) {
  EXPECT_EQ(closest("elu", std::vector<std::string>{"Relu", "Selu"}), "Relu");
  EXPECT_EQ(closest("elu", std::vector<std::string>{"Selu", "Relu"}), "Selu");
}

}  // namespace
}  // namespace halfnote
